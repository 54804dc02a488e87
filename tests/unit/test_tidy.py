"""Rules that the whole repository keeps: rooms say what they are for, and files name nothing of a workplace."""

import ast
import re
import shutil
import string
import subprocess
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from scripts import structure

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests/unit"
PACKAGES = ("batcher", "gateway", "loadgen", "models", "mps")
ROOMS = sorted(file.relative_to(ROOT).as_posix() for name in PACKAGES for file in (ROOT / name).rglob("__init__.py"))

# Paths of one machine and numbers of issues mean nothing to a reader of the repository.
_WORKPLACE = re.compile(r"(?<![\w.$}])/work/|/home/|/Users/|\bissue #?\d+|(?<!\w)#\d+\b(?=[,.;:)]|$)")


def _tracked() -> list[Path]:
    """The text files of the repository."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("the repository is no clone")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = (ROOT / name for name in listed.split("\0") if name)
    return [file for file in files if file.suffix in {".md", ".py", ".toml", ".yaml", ""} and file.is_file()]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_holds_only_the_sentence_that_says_what_it_is_for(room: str) -> None:
    body = ast.parse((ROOT / room).read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    assert isinstance(body[0].value.value, str)
    assert not body[0].value.value.startswith("TODO")


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for name in (*PACKAGES, "scripts", "tests") for file in (ROOT / name).rglob("*.py")}
    served = {folder for folder in folders if ROOT / "tests/support/triton/repository" in folder.parents}
    assert [folder for folder in sorted(folders - served) if not (folder / "__init__.py").exists()] == []


def test_every_script_is_type_checked() -> None:
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    folder = ROOT / "scripts"
    single = {f"scripts.{file.stem}" for file in folder.glob("*.py") if file.name != "__init__.py"}
    bare = {file.stem for file in (folder / "gpu_check").glob("*.py") if file.name != "__init__.py"}
    packages = {f"scripts.{place.parent.name}" for place in folder.glob("*/__init__.py")} - {"scripts.gpu_check"}
    assert single | bare | {"hatch_build"} == set(mypy["modules"])
    assert packages <= set(mypy["packages"])


def test_every_room_with_modules_has_a_folder_of_tests() -> None:
    rooms = [Path(room).parent for room in ROOMS]
    with_modules = [room for room in rooms if any(file.name != "__init__.py" for file in (ROOT / room).glob("*.py"))]
    assert [str(room) for room in with_modules if not list((UNIT / room).glob("test_*.py"))] == []


def test_every_folder_of_tests_of_a_package_is_that_of_a_room() -> None:
    folders = {file.parent.relative_to(UNIT) for name in PACKAGES for file in (UNIT / name).rglob("test_*.py")}
    assert sorted(str(folder) for folder in folders if not (ROOT / folder).is_dir()) == []


def test_every_test_of_a_server_is_in_one_part_of_the_makefile() -> None:
    parts = set(re.findall(r"\btest-system-([\w-]+)", (ROOT / "Makefile").read_text().partition("PARTS := ")[2]))
    possible = {f"test_{letter}.py" for letter in string.digits + string.ascii_lowercase}
    files = possible | {file.name for file in (ROOT / "tests/system").glob("test_*.py")}
    matched = {file: [part for part in parts if fnmatchcase(file, f"test_[{part}]*.py")] for file in files}
    assert {file: found for file, found in matched.items() if len(found) != 1} == {}


def test_there_is_no_circle_of_imports_and_no_class_name_stands_for_two_things() -> None:
    assert structure.main([]) == 0  # pytest shows what it printed


def test_no_file_names_a_path_or_an_issue_of_a_workplace() -> None:
    found = []
    for file in set(_tracked()) - {Path(__file__)}:
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if _WORKPLACE.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    assert sorted(found) == []
