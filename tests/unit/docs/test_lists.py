"""Lists in the documents have each entry once."""

import re
from collections import Counter

from tests.support.documents import ROOT


def test_the_changelog_tells_each_change_once() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = [each.strip() for each in re.split(r"(?m)^(?=- |#)", text) if each.startswith("- ")]
    assert len(entries) > 100
    assert [each for each, count in Counter(entries).items() if count > 1] == []


def test_the_decisions_are_listed_once_and_in_order() -> None:
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (ROOT / "docs/adr/README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))


def test_the_index_lists_each_page_once() -> None:
    listed = re.findall(r"(?m)^- \[[^]]+\]\(([\w./-]+)\):", (ROOT / "docs/index.md").read_text(encoding="utf-8"))
    assert len(listed) > 40
    assert [each for each, count in Counter(listed).items() if count > 1] == []
