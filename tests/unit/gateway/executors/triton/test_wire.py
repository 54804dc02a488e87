"""Requests to Triton servers, their answers, and the meaning of their errors."""

from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from sluice.gateway.executors.triton.errors import ModelLost, ServerLost, meaning
from sluice.gateway.executors.triton.wire import decode_batch, encode_batch
from sluice.gateway.tensors.assembly import BatchInput
from sluice.models.errors import BackendFailed, BadTensor, PartitionError
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import WireBytes
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from tests.support.triton.fake_server import NOT_HEALTHY, M, X, answer_of

NONSENSE = [
    (answer_of(np.zeros(2, np.float32), [1, 2], "z"), "the answer has no output 'y'"),
    (answer_of(np.zeros(4, np.float32), [2, 2]), r"output 'y' is FP32 \[2, 2\], expected FP32 \[1, 2\]"),
    (answer_of(np.zeros(3, np.float32), [1, 3]), r"output 'y' is FP32 \[1, 3\], expected FP32 \[1, 2\]"),
    (answer_of(np.zeros(2, np.int32), [1, 2], datatype="INT32"), r"output 'y' is INT32 \[1, 2\], expected FP32"),
    (answer_of(np.zeros(1, np.float32), [1, 2]), r"output 'y' of shape \[1, 2\] has 4 bytes"),
    (answer_of(np.zeros(0, np.float32), [1, 2]), r"output 'y' of shape \[1, 2\] has 0 bytes"),
    (service_pb2.ModelInferResponse(), "the answer has no output 'y'"),
]


@pytest.mark.parametrize(("answer", "message"), NONSENSE)
def test_an_answer_that_makes_no_sense_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(BadTensor, match=message):
        decode_batch(M, 1, answer.SerializeToString())


def test_bytes_that_are_no_answer_are_refused() -> None:
    with pytest.raises(BadTensor, match="the answer is no ModelInferResponse"):
        decode_batch(M, 1, b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        (grpc.StatusCode.INTERNAL, NOT_HEALTHY, ModelLost),
        (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'm' has no available versions", ModelLost),
        (grpc.StatusCode.UNAVAILABLE, "Request for unknown model: 'm' version 1 is not at ready state", ModelLost),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", ServerLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ServerLost),
        (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size", PartitionError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too large", PartitionError),
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape for input 'x'", BackendFailed),
        (grpc.StatusCode.INTERNAL, "onnxruntime: invalid index", BackendFailed),
    ],
)
def test_what_an_error_of_triton_means(code: grpc.StatusCode, words: str, kind: type[Exception]) -> None:
    assert type(meaning(code, words)) is kind


def test_rows_of_bytes_and_of_several_pieces_travel_in_one_message() -> None:
    text = TensorSpec("text", DataType.BYTES, (VARIABLE,))
    spec = ModelSpec("b", 3, (X, text), (text,), max_batch_size=4)
    wire = np.frombuffer(b"\x01\0\0\0a\0\0\0\0", np.uint8)
    rows = [np.full((1, 2), 1, np.float32), np.full((2, 2), 2, np.float32)]
    message = encode_batch(spec, [BatchInput(X, (3, 2), rows), BatchInput(text, (2, 1), [wire])])
    request = service_pb2.ModelInferRequest.FromString(message)
    assert request.raw_input_contents[0] == np.array([1, 1, 2, 2, 2, 2], np.float32).tobytes()
    assert request.raw_input_contents[1] == b"\x01\0\0\0a\0\0\0\0"
    answer = answer_of(wire, [2, 1], "text", "BYTES")
    tensor = decode_batch(spec, 2, answer.SerializeToString())["text"]
    assert isinstance(tensor, WireBytes)
    assert tensor.row_offsets.tolist() == [0, 5, 9]
