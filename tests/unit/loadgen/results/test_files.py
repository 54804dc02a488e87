import os
from pathlib import Path

import pytest

from sluice.loadgen.results.files import check_file, check_parent, write_file
from sluice.models.errors import ConfigError


def test_a_file_is_written_with_the_folders_above_it(tmp_path: Path) -> None:
    write_file(tmp_path / "monday" / "runs" / "0.json", b"{}")
    assert (tmp_path / "monday" / "runs" / "0.json").read_bytes() == b"{}"
    assert [file.name for file in (tmp_path / "monday" / "runs").iterdir()] == ["0.json"]


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"old")

    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConfigError, match=r"^/.*/a.json: cannot be written: No space left on device$"):
        write_file(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert file.read_bytes() == b"old"


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: it is a folder; expected a file"):
        check_file(tmp_path)


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ConfigError, match=r"a/b/c: cannot be written: /.*/a is not a folder"):
        check_parent(tmp_path / "a" / "b" / "c")


def test_a_folder_without_permission_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ConfigError, match="b/c: cannot be written: no permission to write to"):
        check_file(tmp_path / "b" / "c")


def test_new_files_and_folders_can_be_written(tmp_path: Path) -> None:
    check_file(tmp_path / "new" / "a.json")
    check_file(Path("a.json"))
