"""The Markdown documents of the repository: their links, headings and code spans, for the tests that check them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("batcher", "gateway", "loadgen", "models", "mps")

_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


class Link(NamedTuple):
    """A link to a file of the repository, as written; `anchor` is "" without one."""

    page: Path
    target: str
    path: Path
    anchor: str


def pages() -> list[Path]:
    """All Markdown documents of the repository."""
    folders = ("docs", "examples", "tests", "benchmarks", "scripts")
    nested = (page for folder in folders for page in (ROOT / folder).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *nested])


@cache
def prose(page: Path) -> str:
    """The text of a page without fenced code; lines keep their numbers."""
    text = page.read_text(encoding="utf-8")
    return _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)


def without_spans(text: str) -> str:
    """The text without its code spans."""
    return _SPAN.sub(lambda span: "`" + "\n" * span[0].count("\n") + "`", text)


def code_spans(page: Path) -> Iterator[str]:
    """The code spans of a page, outside of fenced code."""
    for span in _SPAN.finditer(prose(page)):
        yield span[2]


def links(page: Path) -> Iterator[Link]:
    """The links of a page to files of the repository."""
    for match in _LINK.finditer(without_spans(prose(page))):
        target = match[1]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        yield Link(page, target, (page.parent / path).resolve() if path else page, anchor)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that the headings of a page have on GitHub."""
    found: dict[str, int] = {}
    names = set()
    for heading in _HEADING.findall(prose(page)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        number = found.get(name, 0)
        found[name] = number + 1
        names.add(f"{name}-{number}" if number else name)
    return frozenset(names)


@cache
def definitions(file: Path) -> frozenset[str]:
    """The names that a Python file defines: functions, classes, `Class.method`, and constants."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{each.name}" for each in methods)
        elif isinstance(node, ast.Assign):
            names.update(each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)
