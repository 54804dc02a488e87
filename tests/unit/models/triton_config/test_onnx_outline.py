import os
import random
from pathlib import Path

import onnx
import pytest

from sluice.models.errors import ConfigError
from sluice.models.triton_config.onnx_file import read_tensors
from sluice.models.triton_config.onnx_outline import OnnxOutline, read_outline
from tests.support.models.onnx_models import save_external, save_mlp


def refused(path: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path}: {message}"):
        read_tensors(path)


def test_inputs_outputs_and_the_names_of_weights(tmp_path: Path) -> None:
    save_mlp(tmp_path / "m.onnx", [4, 8, 3])
    outline, graph = read_outline(tmp_path / "m.onnx"), onnx.load(str(tmp_path / "m.onnx")).graph
    assert [onnx.ValueInfoProto.FromString(each) for each in outline.inputs] == list(graph.input)
    assert [onnx.ValueInfoProto.FromString(each) for each in outline.outputs] == list(graph.output)
    assert outline.weights == {each.name for each in graph.initializer}
    assert outline.external == set()


def test_weights_of_gigabytes_are_passed_over(tmp_path: Path) -> None:
    path, data_bytes = tmp_path / "m.onnx", 3 << 30
    save_mlp(path, [4, 3])
    small = path.read_bytes()
    tensor_head = b"\x42\x03big" + b"\x4a" + varint(data_bytes)
    graph_head = b"\x2a" + varint(len(tensor_head) + data_bytes) + tensor_head
    with path.open("wb") as file:  # a second part of the graph, which is merged with the first
        file.write(small + b"\x3a" + varint(len(graph_head) + data_bytes) + graph_head)
        file.truncate(file.tell() + data_bytes)  # a hole: it takes no room on the disk
    assert "big" in read_outline(path).weights
    assert [tensor.name for tensor in read_tensors(path).inputs] == ["x"]


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def test_files_of_weights_must_be_regular_files_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m" / "model.onnx"
    save_external(path)
    data = path.with_name("model.onnx_data")
    assert read_outline(path).external == {data.name}
    data.rename(tmp_path / "elsewhere")
    refused(path, "its weights are in 'model.onnx_data': cannot be read: No such file or directory")
    os.mkfifo(data)
    refused(path, "its weights are in 'model.onnx_data': expected a file, got a FIFO")
    data.unlink()
    data.symlink_to(tmp_path / "elsewhere")
    assert read_tensors(path).batchable


def test_what_is_no_model_or_a_part_of_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save_mlp(path, [4, 3])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            read_tensors(path)
        except ConfigError as error:
            assert str(error).startswith(f"{path}: not an ONNX model: ")  # noqa: PT017
    for data in (b"", bytes(1 << 20), b"\xff" * 100, b"<html>"):
        path.write_bytes(data)
        refused(path, "not an ONNX model: ")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n", "it is a pointer of Git LFS"),
        (b"\n<!DOCTYPE html>", "it is a page of HTML"),
        (b"PK\x03\x04" + bytes(60), "it is a ZIP archive, such as torch.save writes"),
    ],
)
def test_what_users_take_for_a_model_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    refused(path, f"not an ONNX model: {reason}")


def test_a_damaged_file_has_an_outline_or_a_reason(tmp_path: Path) -> None:
    path, chance = tmp_path / "m.onnx", random.Random(7)
    save_mlp(path, [4, 3])
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            assert isinstance(read_outline(path), OnnxOutline)
        except ConfigError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
