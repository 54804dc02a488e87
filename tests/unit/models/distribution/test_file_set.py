import hashlib

import msgspec
import pytest

from sluice.models.distribution import file_set as file_set_module
from sluice.models.distribution.file_set import FileEntry, FileSet, LocalStamp, Origin, digest_of, make_file_set

ONE = hashlib.sha256(b"one").hexdigest()
TWO = hashlib.sha256(b"two").hexdigest()
FILES = (FileEntry("mlp/1/model.onnx", 3, ONE), FileEntry("mlp/config.pbtxt", 3, TWO))


def test_the_digest_is_that_of_paths_sizes_and_contents_in_any_order() -> None:
    files = make_file_set(reversed(FILES), "mlp/1/model.onnx", "s3://bucket/models")
    text = f"{ONE} 3 mlp/1/model.onnx\n{TWO} 3 mlp/config.pbtxt\n"
    assert files.digest == hashlib.sha256(text.encode()).hexdigest()
    assert (files.files, files.size, files.contents) == (FILES, 6, {ONE: 3, TWO: 3})
    assert make_file_set(FILES, "mlp/1/model.onnx").digest == files.digest
    assert make_file_set(FILES[:1], "mlp/1/model.onnx").digest != files.digest


def test_a_set_is_the_same_after_a_journey() -> None:
    origin = Origin("boot", (LocalStamp("/a", 1, 2), LocalStamp("/b", 3, 4)))
    files = make_file_set(FILES, "mlp/1/model.onnx", origin=origin)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(files), type=FileSet) == files


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "mlp/../../etc/passwd",
        "mlp//model",
        "./mlp",
        "mlp/.",
        "mlp/",
        "mlp\\model",
        "mlp/new\nline",
        "mlp/\x00",
        "a" * 256,
        "a/" * 600 + "a",
        "mlp/\u202emodel",
    ],
)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="expected a relative path below a directory"):
        FileEntry(path, 1, ONE)
    raw = msgspec.msgpack.encode([digest_of(()), path, [[path, 1, ONE]]])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=FileSet)


@pytest.mark.parametrize(
    ("size", "sha256", "message"),
    [
        (-1, ONE, "expected a size of 0 to"),
        (1 << 43, ONE, "expected a size of 0 to"),
        (1, ONE.upper(), "expected a SHA-256 in hexadecimal"),
        (1, "../" + ONE[3:], "expected a SHA-256 in hexadecimal"),
        (1, ONE + "\n", "expected a SHA-256 in hexadecimal"),
    ],
)
def test_sizes_and_hashes_are_checked(size: int, sha256: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileEntry("mlp/1/model.onnx", size, sha256)


@pytest.mark.parametrize(
    ("files", "model", "message"),
    [
        ((), "mlp/1/model.onnx", "expected 1 to 4096 files, got 0"),
        (FILES[::-1], "mlp/1/model.onnx", "in order, got 'mlp/1/model.onnx' after 'mlp/config.pbtxt'"),
        (FILES[:1] * 2, "mlp/1/model.onnx", "expected each path once"),
        (FILES, "mlp/1/other.onnx", "expected the model's file among the files, got 'mlp/1/other.onnx'"),
        ((FileEntry("mlp/1", 3, ONE), FILES[0]), "mlp/1", "'mlp/1': expected a file or a directory"),
        ((FileEntry("a", 1 << 42, ONE), FileEntry("b", 1, TWO)), "a", "expected at most 4398046511104 bytes"),
    ],
)
def test_files_that_no_directory_has_are_refused(files: tuple[FileEntry, ...], model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileSet(digest_of(files), model, files)


def test_the_digest_must_be_that_of_the_files() -> None:
    with pytest.raises(ValueError, match="expected the digest of the files"):
        FileSet(ONE, "mlp/1/model.onnx", FILES)
    with pytest.raises(ValueError, match="expected 2 stamps of files, got 1"):
        make_file_set(FILES, "mlp/1/model.onnx", origin=Origin("boot", (LocalStamp("/a", 1, 2),)))


def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set_module, "MAX_FILES", 1)
    with pytest.raises(ValueError, match="expected 1 to 1 files, got 2"):
        make_file_set(FILES, "mlp/1/model.onnx")
