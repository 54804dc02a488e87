"""Inputs of `sluice infer`: zeros and files, as the metadata of the model wants them."""

import io
import json
from typing import Any

import numpy as np
import pytest

from sluice.gateway.cli.inference.grpc import GrpcInference
from sluice.gateway.cli.inference.inputs import read_inputs, zeros
from sluice.gateway.cli.inference.messages import (
    Inference,
    ModelInfo,
    TensorInfo,
    TypedArray,
    as_bf16,
    as_numbers,
    to_wire,
)
from sluice.models.client_tls import ClientTls
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType


def model(*inputs: TensorInfo) -> ModelInfo:
    return ModelInfo("m", inputs, ())


X = TensorInfo("x", DataType.FP32, (-1, 2))
ONE = model(X)
TWO = model(X, TensorInfo("ids", DataType.INT64, (-1, 3)))
TEXT = model(TensorInfo("text", DataType.BYTES, (-1, 1)))


def npz(**arrays: Array) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_zeros_have_the_shapes_of_the_metadata() -> None:
    wide = model(X, TensorInfo("image", DataType.UINT8, (-1, 3, -1, -1)), TensorInfo("t", DataType.BYTES, (1,)))
    found = zeros(wide, 2, {"image": (2, 3, 8, 8)}).inputs
    assert {name: tensor.array.shape for name, tensor in found.items()} == {
        "x": (2, 2),
        "image": (2, 3, 8, 8),
        "t": (1,),
    }
    assert found["image"].array.dtype == np.uint8
    assert found["t"].array.tolist() == [b""]
    assert zeros(wide, 1, {}).inputs["image"].array.shape == (1, 3, 1, 1)


@pytest.mark.parametrize(
    "data",
    [
        b'{"x": [[1, 2], [3, 4]]}',
        b"[[1, 2], [3, 4]]",
        b'{"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}',
        npz(x=np.array([[1, 2], [3, 4]])),
        npz(x=np.array([[1, 2], [3, 4]], np.float64)),
        npy(np.array([[1, 2], [3, 4]], np.float32)),
    ],
    ids=["by name", "the only input", "a body of V2", "npz of integers", "npz of doubles", "npy"],
)
def test_files_of_every_kind_are_read(data: bytes) -> None:
    tensor = read_inputs(data, "file", ONE).inputs["x"]
    assert tensor.array.dtype == np.float32
    assert tensor.array.tolist() == [[1, 2], [3, 4]]


def test_an_array_without_rows_is_one_row() -> None:
    assert read_inputs(b"[1, 2]", "file", ONE).inputs["x"].array.shape == (1, 2)


def test_text_stays_text() -> None:
    assert read_inputs('{"text": ["grün"]}'.encode(), "file", TEXT).inputs["text"].array.tolist() == [["grün"]]
    assert read_inputs(npy(np.array([["a"], ["b"]])), "file", TEXT).inputs["text"].array.tolist() == [["a"], ["b"]]


def test_a_body_of_the_protocol_is_kept_with_its_id() -> None:
    body = json.dumps({"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "data": [1, 2]}], "parameters": {"a": 1}})
    found = read_inputs(body.encode(), "file", ONE)
    assert (found.document, found.id, found.parameters) == (body.encode(), "7", {"a": 1})


def test_bf16_is_rounded_to_the_nearest() -> None:
    values = np.array([1.0, -2.5, 1.00390625, 3.1415927], np.float32)
    back = as_numbers(TypedArray(DataType.BF16, as_bf16(values)))
    assert back.tolist() == [1.0, -2.5, 1.0, 3.140625]


@pytest.mark.parametrize(
    ("data", "info", "expected"),
    [
        (b"[[1, 2, 3]]", ONE, "f: input 'x': expected shape [-1, 2], got [1, 3]"),
        (b'{"y": [1, 2]}', ONE, "f: 'm' has no input 'y'; expected x"),
        (b"[1, 2]", TWO, "f: expected an object with the inputs of 'm' by name: 'x', 'ids'"),
        (b'{"ids": [1.5, 2, 3]}', TWO, "f: input 'ids': expected INT64, got numbers of float64"),
        (b'{"x": [[1, 2], [3]]}', ONE, "f: input 'x': expected nested lists of equal lengths"),
        (b'{"x": ["a", "b"]}', ONE, "f: input 'x': expected numbers in nested lists of equal lengths for FP32"),
        (b'{"text": [1]}', TEXT, "f: input 'text': expected texts for BYTES, got object"),
        (b"nonsense", ONE, "f: cannot be read as JSON, .npz or .npy: Expecting value"),
        (b"PK\x03\x04nonsense", ONE, "f: cannot be read as JSON, .npz or .npy: "),
        (b"\x93NUMPYnonsense", ONE, "f: cannot be read as JSON, .npz or .npy: "),
        (b'{"inputs": [{"name": "x"}]}', ONE, "f: inputs: expected objects with name, shape, datatype and data"),
        (
            b'{"inputs": [{"name": "x", "shape": [1, 2], "data": [1]}]}',
            ONE,
            "f: input 'x': shape [1, 2] does not fit 1 elements of data",
        ),
        (
            npy(np.array([[300]])),
            model(TensorInfo("x", DataType.UINT8, (-1, 1))),
            "f: input 'x': expected numbers from 0 to 255",
        ),
    ],
)
def test_what_does_not_fit_is_named(data: bytes, info: ModelInfo, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_inputs(data, "f", info)
    assert str(raised.value).startswith(expected)


@pytest.mark.parametrize("shape", ["[-1, -2]", "[true, 2]", "[1.5, 2]", "4"])
def test_a_body_has_a_shape_of_whole_numbers(shape: str) -> None:
    data = f'{{"inputs": [{{"name": "x", "shape": {shape}, "datatype": "FP32", "data": [1, 2]}}]}}'
    with pytest.raises(ConfigError, match=r"^f: input 'x': expected a shape of whole numbers, got "):
        read_inputs(data.encode(), "f", ONE)


def test_texts_that_are_not_unicode_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected texts of Unicode, got "):
        to_wire(read_inputs(b'["\\ud800"]', "f", TEXT).inputs["text"])


@pytest.mark.parametrize("body", [{"id": "\ud800"}, {"parameters": {"\ud800": 1}}, {"parameters": {"a": 1 << 64}}])
def test_what_grpc_cannot_carry_is_refused(body: dict[str, Any]) -> None:
    inference = Inference({}, **body)
    with (
        GrpcInference("grpc://127.0.0.1:1", (), ClientTls(), "m", "", 1.0) as server,
        pytest.raises(ConfigError, match="cannot be sent over gRPC"),
    ):
        server.infer(inference)
