"""The codecs alone, in one thread: from a body to checked tensors, and from an answer to its bytes."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from benchmarks.conftest import Report
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.grpc import codec as codec_grpc
from sluice.gateway.http import codec as codec_http
from sluice.gateway.inference.request_template import JsonTemplate
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request import InferResponse
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import identity

IMAGE = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
"""602 112 bytes."""
JSON_RULES = JsonRules()
ANSWER = Answer(Outcome.COMPLETED)
ROW = np.random.default_rng(0).random((1, 64), np.float32)
JSON = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": ROW.tolist()}]}).encode()


def of(values: Array) -> Signature:
    """The signature of a model that echoes an array."""
    return Signature(identity("m", ("x", DataType.FP32, values.shape[1:])))


def respond(values: Tensor) -> InferResponse:
    return InferResponse("", [("x", values)], ANSWER)


def http_binary() -> Callable[[], None]:
    signature = of(IMAGE)
    tensor = {"name": "x", "datatype": "FP32", "shape": IMAGE.shape, "parameters": {"binary_data_size": IMAGE.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = head + IMAGE.tobytes()

    def there_and_back() -> None:
        request, flags = codec_http.decode_request(body, len(head), signature)
        inputs = signature.check_inputs(request.inputs).inputs
        encoded = codec_http.encode_response(respond(inputs["x"]), flags, signature, JSON_RULES)
        assert encoded.length > IMAGE.nbytes

    return there_and_back


def http_json() -> Callable[[], None]:
    signature = of(ROW)

    def there_and_back() -> None:
        request, flags = codec_http.decode_request(JSON, None, signature)
        inputs = signature.check_inputs(request.inputs).inputs
        codec_http.encode_response(respond(inputs["x"]), flags, signature, JSON_RULES)

    return there_and_back


def http_json_repeated() -> Callable[[], None]:
    signature = of(ROW)
    request, flags = codec_http.decode_request(JSON, None, signature)
    inputs, rows, key, memory_bytes = signature.check_inputs(request.inputs)
    form = JsonTemplate(JSON, signature, inputs, RequestOptions(("x",), rows, key, memory_bytes, 0), flags)

    def there_and_back() -> None:
        assert form.matches(JSON, None, signature)
        inputs = form.tensors(JSON)
        assert inputs is not None
        codec_http.encode_response(respond(inputs["x"]), form.binary_flags, signature, JSON_RULES)

    return there_and_back


def grpc_binary() -> Callable[[], None]:
    signature = of(IMAGE)
    message = service_pb2.ModelInferRequest(
        model_name="m",
        inputs=[{"name": "x", "datatype": "FP32", "shape": IMAGE.shape}],
        raw_input_contents=[IMAGE.tobytes()],
    )

    def there_and_back() -> None:
        inputs = signature.check_inputs(codec_grpc.decode_request(message).inputs).inputs
        codec_grpc.encode_response(respond(inputs["x"]), signature)

    return there_and_back


@pytest.mark.parametrize(
    ("codec", "figure", "goal"),
    [
        (http_binary, "HTTP, 600 kB of binary tensor, decoded and encoded, us", "<= 40"),
        (http_json, "HTTP, 64 floats in JSON, decoded and encoded, us", "<= 15"),
        (http_json_repeated, "HTTP, the same, from a connection's second request on, us", "<= 15"),
        (grpc_binary, "gRPC, 600 kB of tensor, messages decoded and encoded, us", ""),
    ],
)
def test_codec(benchmark: Any, report: Report, codec: Callable[[], Callable[[], None]], figure: str, goal: str) -> None:
    """Median time to decode a request, check its tensors and encode an answer with the same tensors."""
    benchmark(codec())
    report(figure, f"{benchmark.stats['median'] * 1e6:.1f}", goal)
