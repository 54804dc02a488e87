import os
from pathlib import Path

import pytest

from sluice.models.repository.stamps import FileStamps, file_stamps

OLD_NS = 10**9


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    write(tmp_path / "m" / "1" / "model.onnx", "a")
    write(tmp_path / "m" / "config.pbtxt", "b")
    return tmp_path / "m"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(OLD_NS, OLD_NS))


def changed(before: FileStamps, entry: Path) -> set[str]:
    after = file_stamps(entry)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_contents_of_the_same_size_and_time_are_noticed(entry: Path) -> None:
    before = file_stamps(entry)
    assert changed(before, entry) == set()
    write(entry / "1" / "model.onnx", "c")  # in place
    assert changed(before, entry) == {"1"}
    before = file_stamps(entry)
    write(entry / "new", "d")
    (entry / "new").replace(entry / "config.pbtxt")
    assert changed(before, entry) == {"config.pbtxt"}


def test_links_that_are_switched_are_noticed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write(tmp_path / name / "1" / "model.onnx", name[0])
    entry = tmp_path / "m"
    (entry / "1").mkdir(parents=True)
    (entry / "..data").symlink_to("../first/1")
    (entry / "1" / "model.onnx").symlink_to("../..data/model.onnx")
    (entry / "2").symlink_to("../first/1")
    before = file_stamps(entry)
    assert before.keys() == {"1", "2"}
    (entry / "next").symlink_to("../second/1")
    (entry / "next").replace(entry / "..data")
    assert changed(before, entry) == {"1"}
    (entry / "next").symlink_to("../second/1")
    (entry / "next").replace(entry / "2")
    assert changed(before, entry) == {"1", "2"}


def test_links_in_circles_and_to_nowhere_have_stamps(entry: Path) -> None:
    (entry / "1" / "again").symlink_to("..")
    (entry / "1" / "nowhere").symlink_to("nothing")
    (entry / "1" / "itself").symlink_to("itself")
    before = file_stamps(entry)
    write(entry / "1" / "nothing", "")
    assert changed(before, entry) == {"1"}


def test_what_systems_and_tools_put_beside_files_does_not_count(entry: Path) -> None:
    before = file_stamps(entry)
    for name in (".model.onnx.Xy12", "__pycache__/model.pyc", "@eaDir/model", ".git/HEAD", "profile.json"):
        write(entry / "1" / name, "x")
        write(entry / name, "x")
    assert changed(before, entry) == set()
    write(entry / "1" / "helper.py", "x")
    assert changed(before, entry) == {"1"}
