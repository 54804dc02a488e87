"""The map in docs/architecture.md, and every other page, name folders, files and functions that exist."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.documents import PACKAGES, ROOT, code_spans, definitions, pages, prose

MAP = ROOT / "docs/architecture.md"
_FOLDERS = (*PACKAGES, "tests", "benchmarks", "docs", "examples", "scripts", "src")
_SAVED = re.compile(r"[Ss]ave \w+(?: \w+)? as `([^`]+)`")
"""Files that a page has its reader write."""
_PLACE = re.compile(rf"(?P<path>(?:{'|'.join(_FOLDERS)})/[\w./-]*)(?::(?P<name>[A-Za-z_][\w.]*))?")
HISTORY = {ROOT / "CHANGELOG.md"}
"""Pages that may name what is gone."""
_LEVEL_ROW = re.compile(r"^\| (`[^|]+`) \| (\d+) \| ", re.MULTILINE)


def _places(page: Path) -> list[tuple[str, str, str]]:
    saved = set(_SAVED.findall(prose(page)))
    matches = (_PLACE.fullmatch(span) for span in code_spans(page) if span not in saved)
    return [(place[0], place["path"], place["name"] or "") for place in matches if place]


def _exists(path: str, name: str) -> bool:
    place = ROOT / path
    if path.endswith("/"):
        return place.is_dir()
    return place.exists() and (not name or (place.is_file() and name in definitions(place)))


@pytest.mark.parametrize(
    "page", [page for page in pages() if page not in HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_folders_files_and_functions_exist(page: Path) -> None:
    assert [span for span, path, name in _places(page) if not _exists(path, name)] == []


def test_the_map_has_every_folder_of_the_packages_and_of_the_tests() -> None:
    folders = set()
    for package in PACKAGES:
        for folder in (ROOT / package).rglob("*/"):
            if any(file.name != "__init__.py" for file in folder.glob("*.py")):
                folders.add(f"{folder.relative_to(ROOT)}/")
    folders |= {f"tests/{folder.name}/" for folder in (ROOT / "tests").iterdir() if list(folder.glob("**/*.py"))}
    listed = {path for _, path, _ in _places(MAP) if path.endswith("/")}
    assert sorted(folders - listed) == []


def _contract_levels() -> dict[str, int]:
    """The level of each folder and file directly in a package, by the layers in pyproject.toml; the lowest is 1."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return {
        f"{container.removeprefix('sluice.')}/{room.strip()}": level
        for contract in contracts
        for container in contract.get("containers", ())
        if container.removeprefix("sluice.") in PACKAGES
        for level, rooms in enumerate(reversed(contract["layers"]), 1)
        for room in rooms.split("|")
    }


def test_the_levels_of_the_map_are_those_of_the_import_contracts() -> None:
    listed = {
        "/".join(path.split("/")[:2]).removesuffix(".py"): int(level)
        for paths, level in _LEVEL_ROW.findall(MAP.read_text(encoding="utf-8"))
        for path in re.findall(r"`([^`]+)`", paths)
    }
    assert listed == _contract_levels()


def test_every_row_of_where_do_i_change_names_a_file_and_a_test() -> None:
    text = MAP.read_text(encoding="utf-8")
    section = text[text.index("## Where do I change") : text.index("## The path of a request")]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for _what, file, test in rows:
        assert re.search(r"`[\w/]+\.(py|js)", file), file
        assert "`tests/" in test or "the test that quotes it" in test, test


def test_every_step_of_a_request_names_a_function() -> None:
    text = MAP.read_text(encoding="utf-8")
    section = text[text.index("## The path of a request") : text.index("## What holds everywhere")]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 12
    for step in rows:
        assert re.search(r"`[\w/]+\.py:\w", step[1]), step
