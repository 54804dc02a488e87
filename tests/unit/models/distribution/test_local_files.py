import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.models.distribution import local_files as local_files_module
from sluice.models.distribution.file_set import FileSet
from sluice.models.distribution.local_files import LocalFiles, local_model, machine_id
from sluice.models.errors import ConfigError, NotFoundError
from tests.support.models.onnx_models import save_external


@pytest.fixture
def local() -> LocalFiles:
    return LocalFiles(machine="boot")


def write(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def paths(files: FileSet) -> list[str]:
    return [file.path for file in files.files]


def test_a_version_has_its_files_and_those_of_its_model_but_no_other_version(local: LocalFiles, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "mlp/1/model.onnx": "old",
            "mlp/2/model.onnx": "model",
            "mlp/2/vocabulary/words.txt": "words",
            "mlp/2/.model.onnx.swp": "hidden",
            "mlp/2/__pycache__/a.pyc": "compiled",
            "mlp/2/profile.json": "{}",
            "mlp/config.pbtxt": "config",
            "mlp/labels.txt": "labels",
            "mlp/initial_state/zeros": "state",
            "mlp/checkpoints/large": "not for this backend",
        },
    )
    files = local.file_set("mlp:2@7", tmp_path / "mlp/2/model.onnx", "onnxruntime")
    assert paths(files) == [
        "mlp/2/model.onnx",
        "mlp/2/vocabulary/words.txt",
        "mlp/config.pbtxt",
        "mlp/initial_state/zeros",
        "mlp/labels.txt",
    ]
    assert files.model == "mlp/2/model.onnx"
    assert files.files[0].sha256 == hashlib.sha256(b"model").hexdigest()
    with local.open(files.digest, "mlp/labels.txt") as opened:
        assert opened.read() == b"labels"


def test_a_python_model_has_the_modules_that_it_can_import(local: LocalFiles, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "repository/m/1/helper.py": "",
            "repository/m/shared/__init__.py": "",
            "repository/m/2/model.py": "old",
            "elsewhere/model_v3.py": "class TritonPythonModel: ...",
            "elsewhere/preprocessing.py": "beside the file that the link leads to",
            "elsewhere/helper.py": "its own comes first",
            "elsewhere/notes.txt": "",
        },
    )
    model = tmp_path / "repository/m/1/model.py"
    model.symlink_to(tmp_path / "elsewhere/model_v3.py")
    files = local.file_set("m:1", model, "python")
    assert paths(files) == [
        "m/1/helper.py",
        "m/1/model.py",
        "m/1/model_v3.py",
        "m/1/preprocessing.py",
        "m/shared/__init__.py",
    ]
    with local.open(files.digest, "m/1/helper.py") as opened:
        assert opened.read() == b""


def test_weights_of_an_onnx_model_are_found_where_links_lead(local: LocalFiles, tmp_path: Path) -> None:
    store = tmp_path / "store"
    save_external(store / "blob", "weights.bin")
    model = tmp_path / "repository/m/1/model.onnx"
    model.parent.mkdir(parents=True)
    model.symlink_to(store / "blob")
    files = local.file_set("m:1", model, "onnxruntime")
    assert paths(files) == ["m/1/model.onnx", "m/1/weights.bin"]


def test_a_model_that_is_a_directory_of_its_name(local: LocalFiles, tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.onnx/model.onnx": "a", "m/1/model.onnx/weights": "b"})
    files = local.file_set("m:1", tmp_path / "m/1/model.onnx/model.onnx", "onnxruntime")
    assert (files.model, len(files.files)) == ("m/1/model.onnx/model.onnx", 2)


def test_a_file_without_a_repository_is_alone(local: LocalFiles, tmp_path: Path) -> None:
    write(tmp_path, {"mlp.onnx": "a", "private.txt": "not for others"})
    files = local.file_set("mlp:1", tmp_path / "mlp.onnx", "onnxruntime")
    assert (paths(files), files.model) == (["mlp/1/mlp.onnx"], "mlp/1/mlp.onnx")


def test_links_in_circles_fifos_and_links_that_lead_nowhere_are_no_files(local: LocalFiles, tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.py": "a"})
    (tmp_path / "m/1/again").symlink_to(tmp_path / "m")
    (tmp_path / "m/1/nowhere").symlink_to("nothing")
    os.mkfifo(tmp_path / "m/1/fifo")
    assert "m/1/nowhere" not in (found := paths(local.file_set("m:1", tmp_path / "m/1/model.py", "python")))
    assert [path for path in found if "fifo" in path or path.count("again") > 1] == []


def test_contents_are_read_once_and_again_when_they_have_changed(
    local: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"m/1/model.onnx": "one", "m/1/other": "same"})
    model = tmp_path / "m/1/model.onnx"
    read: list[str] = []
    original = hashlib.sha256

    def counted(*data: bytes) -> object:
        read.append("hash")
        return original(*data)

    monkeypatch.setattr(hashlib, "sha256", counted)
    before = local.file_set("m:1", model, "timed")
    hashed = len(read)
    assert local.file_set("m:1", model, "timed") == before
    assert len(read) - hashed == hashed - 2  # all but the two files
    times = model.stat()
    model.write_text("two")
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = local.file_set("m:1", model, "timed")
    assert after.digest != before.digest
    assert after.files[0].sha256 == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_is_being_written_is_refused(
    local: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"m/1/model.onnx": "one"})
    model = tmp_path / "m/1/model.onnx"
    monkeypatch.setattr(local_files_module, "_BLOCK_BYTES", 1)
    original = hashlib.sha256

    class Writing:
        def __init__(self) -> None:
            self.inner = original()

        def update(self, data: bytes) -> None:
            model.write_text("one more")
            self.inner.update(data)

        def hexdigest(self) -> str:
            return self.inner.hexdigest()

    monkeypatch.setattr(hashlib, "sha256", Writing)
    with pytest.raises(ConfigError, match=r"model\.onnx: it is being changed"):
        local.file_set("m:1", model, "timed")


def test_what_cannot_be_sent_is_named(local: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"m/1/model.onnx": "a", "m/1/a\\b": "c"})
    with pytest.raises(ConfigError, match="expected a name in UTF-8 without control characters"):
        local.file_set("m:1", tmp_path / "m/1/model.onnx", "timed")
    (tmp_path / "m/1/a\\b").rename(tmp_path / "m/1/b")
    monkeypatch.setattr(local_files_module, "MAX_FILES", 1)
    with pytest.raises(ConfigError, match="m: expected at most 1 files in a version"):
        local.file_set("m:1", tmp_path / "m/1/model.onnx", "timed")


def test_a_copy_of_a_repository_by_url_has_its_url(tmp_path: Path) -> None:
    write(tmp_path, {"copy/m/1/model.onnx": "a", "own/m/1/model.onnx": "a"})
    local = LocalFiles({tmp_path / "copy": "s3://bucket/models"})
    assert local.file_set("m:1", tmp_path / "copy/m/1/model.onnx", "timed").uri == "s3://bucket/models"
    assert local.file_set("m:1", tmp_path / "own/m/1/model.onnx", "timed").uri == ""


def test_nothing_but_files_of_known_sets_is_opened(
    local: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"m/1/model.onnx": "a", "n/1/model.onnx": "b"})
    one = local.file_set("m:1", tmp_path / "m/1/model.onnx", "timed")
    for digest, path in ((one.digest, "../../etc/passwd"), (one.digest, "n/1/model.onnx"), ("0" * 64, one.model)):
        with pytest.raises(NotFoundError, match="there is no file"):
            local.open(digest, path)
    monkeypatch.setattr(local_files_module, "MAX_SETS", 1)
    local.file_set("n:1", tmp_path / "n/1/model.onnx", "timed")
    with pytest.raises(NotFoundError):
        local.open(one.digest, one.model)


def test_files_of_this_machine_are_used_as_they_are_only_if_they_are_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.onnx": "a", "m/1/weights": "b"})
    model = tmp_path / "m/1/model.onnx"
    files = LocalFiles(machine="boot").file_set("m:1", model, "timed")
    assert local_model(files, "boot") == model
    assert local_model(files, "another machine") is None
    assert local_model(LocalFiles(machine="").file_set("m:1", model, "timed"), "") is None
    (tmp_path / "m/1/weights").write_text("c")  # as in a container that has other files there
    assert local_model(files, "boot") is None
    (tmp_path / "m/1/weights").unlink()
    assert local_model(files, "boot") is None
    assert machine_id() == machine_id()
