"""Links between the documents lead somewhere, and every page can be reached."""

import re
from pathlib import Path

import pytest

from tests.support.documents import PACKAGES, ROOT, anchors, links, pages


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = [
        link.target
        for link in links(page)
        if not link.path.exists() or (link.anchor and link.anchor not in anchors(link.path))
    ]
    assert broken == []


def test_every_page_of_the_documents_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs/index.md"
    reached, left = {index}, [index]
    while left:
        for link in links(left.pop()):
            if link.path.suffix == ".md" and link.path.exists() and link.path not in reached:
                reached.add(link.path)
                left.append(link.path)
    lost = [_name(page) for page in (ROOT / "docs").rglob("*.md") if page not in reached]
    assert lost == []


def test_documents_that_the_code_names_exist() -> None:
    named = re.compile(r"\bdocs/[\w./-]+\.md\b|\bdocs/adr/\d{4}\b")
    missing = []
    files = [ROOT / "pyproject.toml", ROOT / "Makefile"]
    for folder in (*PACKAGES, "tests", "examples", "benchmarks", "scripts"):
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in {".py", ".yaml", ".toml"}]
    for file in files:
        if file == Path(__file__):
            continue
        names = named.findall(file.read_text(encoding="utf-8"))
        patterns = {name: name if name.endswith(".md") else f"{name}-*.md" for name in names}
        missing += [f"{_name(file)}: {name}" for name, pattern in patterns.items() if not list(ROOT.glob(pattern))]
    assert missing == []
