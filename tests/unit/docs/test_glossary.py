"""The glossary has every public class of the core's interface, records, queues and policies, and no other."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.support.documents import ROOT

GLOSSARY = ROOT / "docs/glossary.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def _files() -> list[Path]:
    core = ROOT / "batcher"
    files = core / "state.py", core / "policies" / "base.py"
    return [*files, *(core / "interface").rglob("*.py"), *(core / "queues").rglob("*.py")]


def test_the_glossary_has_the_classes_of_the_core() -> None:
    classes = {
        node.name
        for file in _files()
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    text = GLOSSARY.read_text(encoding="utf-8")
    listed = Counter(name for name, _ in _ROW.findall(text[text.index("## Classes of the core") :]))
    assert sorted(classes - listed.keys()) == []
    assert sorted(listed.keys() - classes) == []
    assert [name for name, count in listed.items() if count > 1] == []


def test_the_terms_are_in_order() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    terms = text[text.index("## Terms") : text.index("## Classes of the core")]
    words = [line.split(" | ")[0].strip("| ") for line in terms.splitlines() if line.startswith("| ")][1:]
    assert words == sorted(words, key=str.lower)
