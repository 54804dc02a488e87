"""Text that people read is plain English: some words and openings are not used.

`CHECKED` has the files and top folders that are looked at: the prose of Markdown files; the docstrings, comments,
messages and names of Python files; the whole text of other files.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, prose, without_spans

CHECKED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml", "docs"),
    *("models", "mps", "batcher", "gateway", "loadgen", "examples", "benchmarks", "scripts", "tests"),
)

WORDS = ("told", "anew", "be it", "nobody's", "whoever", "but for", "so many")
OPENINGS = ("What", "Whether", "How")

_WORDS = re.compile(rf"\b({'|'.join(WORDS)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_OPENINGS = re.compile(rf"\s*({'|'.join(OPENINGS)})\b")


def _files() -> Iterator[Path]:
    for name in CHECKED:
        place = ROOT / name
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (file for file in found if place == file or file.suffix in {".md", ".py"})


def _findings(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return list(_words_in(without_spans(prose(file)), 1))
    return [*_words_of(text), *_openings_of(text)] if file.suffix == ".py" else list(_words_in(text, 1))


def _words_in(text: str, first_line: int) -> Iterator[str]:
    for word in _WORDS.finditer(text):
        line = first_line + text[: word.start()].count("\n")
        yield f"line {line}: {word[0]}"


def _words_of(source: str) -> Iterator[str]:
    """The words in names, comments and strings, docstrings included."""
    texts = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in texts:
            yield from _words_in(token.string, token.start[0])
        elif token.type == tokenize.NAME:
            yield from _words_in(token.string.replace("_", " "), token.start[0])


def _openings_of(source: str) -> Iterator[str]:
    """The docstrings, of attributes too, that open with one of OPENINGS."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
                and (opening := _OPENINGS.match(statement.value.value))
            ):
                yield f"line {statement.lineno}: docstring opens with {opening[1]}"


@pytest.mark.parametrize(
    "file", [file for file in _files() if file != Path(__file__)], ids=lambda file: str(file.relative_to(ROOT))
)
def test_text_is_plain_english(file: Path) -> None:
    assert _findings(file) == []


def test_words_in_names_comments_strings_and_docstrings_are_found() -> None:
    source = '"""Whether it is so."""\n\nx = f"{1} was told"  # but\nis_told = "anew"  # but for that\n'
    assert list(_words_of(source)) == ["line 3: told", "line 4: told", "line 4: anew", "line 4: but for"]
    assert list(_openings_of(source)) == ["line 1: docstring opens with Whether"]
