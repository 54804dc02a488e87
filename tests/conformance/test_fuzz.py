"""Random bodies, headers and messages: each is answered or refused with a sentence, and the server lives on."""

import gzip
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonNan, JsonRules
from sluice.gateway.grpc.codec import decode_request as decode_message
from sluice.gateway.http.codec import decode_request
from sluice.gateway.http.predict import decode_invocation, decode_predict, encode_predictions
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request import InferRequest, InferResponse
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.protocol.status import grpc_status, http_status
from sluice.models.errors import ServingError
from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity
from tests.unit.gateway.instant_gateway import identity

ANSWERS = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,
)
INFER = "/inference.GRPCInferenceService/ModelInfer"
SIGNATURES = [
    Signature(identity("m", ("x", DataType.FP32, (2,)), ("s", DataType.BYTES, (-1,)))),
    Signature(identity("v", ("x", DataType.INT8, (-1, 3)))),
    Signature(identity("w", ("s", DataType.BYTES, (1,)), max_batch_size=0)),
    Signature(identity("h", ("x", DataType.BF16, (2, -1)))),
]

NUMBERS = st.one_of(
    st.integers(-2, 9), st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1, 10**30]), st.floats(), st.floats(-2, 9)
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5))
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(good, good, good, good, JUNK)


DATATYPES = st.sampled_from([*DataType, "FP31", ""])
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "binary_data_size": mostly(st.sampled_from([0, 4, 8, 2**40])),
        "binary_data": mostly(st.booleans()),
        "classification": mostly(st.integers(0, 3)),
        "shared_memory_region": mostly(st.just("r")),
        "shared_memory_byte_size": mostly(st.sampled_from([0, 8, 2**62])),
        "shared_memory_offset": mostly(st.sampled_from([0, 8, 2**62])),
    },
)
TENSORS = st.fixed_dictionaries(
    {
        "name": mostly(st.sampled_from(["x", "s"])),
        "datatype": mostly(DATATYPES),
        "shape": mostly(st.lists(st.integers(-1, 3), max_size=4)),
    },
    optional={"data": mostly(st.lists(st.one_of(NUMBERS, st.text(max_size=3)), max_size=9)), "parameters": PARAMETERS},
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": mostly(st.lists(TENSORS, max_size=3))},
    optional={
        "id": mostly(st.text(max_size=5)),
        "outputs": mostly(
            st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["x", "s", "y"])}, optional={"parameters": PARAMETERS}),
                max_size=3,
            )
        ),
        "parameters": mostly(
            st.dictionaries(
                st.sampled_from(
                    ["timeout", "priority", "slo_ms", "binary_data_output", "sequence_id", "triton_x", "a"]
                ),
                SCALARS,
                max_size=3,
            )
        ),
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int | None]:
    """A body, and how long its JSON is said to be."""
    if draw(st.integers(0, 9)) == 0:
        head = draw(st.binary(max_size=60))
    else:
        head = json.dumps(draw(REQUESTS)).encode()
        if draw(st.integers(0, 9)) == 0:
            place = draw(st.integers(0, len(head) - 1))
            head = head[:place] + draw(st.binary(max_size=3)) + head[place + 1 :]
    blobs = draw(st.binary(max_size=24))
    length = draw(st.sampled_from([None, len(head), len(head), 0, len(head) + 1, 2**31, 3]))
    return head + blobs, length


def refusal(check: Callable[[], None]) -> ServingError | None:
    try:
        check()
    except ServingError as error:
        return error
    return None


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=bodies(), signature=st.sampled_from(SIGNATURES))
def test_bodies_are_decoded_or_refused(body: tuple[bytes, int | None], signature: Signature) -> None:
    def check() -> None:
        request, flags = decode_request(*body, signature)
        if not request.shared:
            signature.check_inputs(request.inputs)
        assert len(flags) == len(signature.check_outputs(request.outputs))

    error = refusal(check)
    assert error is None or (http_status(error) == 400 and str(error))


ELEMENTS = st.one_of(NUMBERS, st.text(max_size=3), st.sampled_from([{"b64": "YQ=="}, {"b64": "?"}, {"b64": 1}]))
ROWS = st.recursive(ELEMENTS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMED = st.dictionaries(st.sampled_from(["x", "s", "y"]), mostly(ROWS), max_size=2)
PREDICTIONS = st.fixed_dictionaries(
    {},
    optional={
        "instances": mostly(st.lists(st.one_of(ROWS, NAMED), max_size=3)),
        "inputs": mostly(st.one_of(ROWS, NAMED)),
        "signature_name": mostly(st.just("serving_default")),
        "parameters": mostly(st.dictionaries(st.sampled_from(["timeout", "slo_ms", "a"]), SCALARS, max_size=2)),
    },
)


@st.composite
def predict_bodies(draw: st.DrawFn) -> bytes:
    body = json.dumps(draw(PREDICTIONS)).encode()
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(body) - 1))
        body = body[:place] + draw(st.binary(max_size=3)) + body[place + 1 :]
    return body


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=predict_bodies(), other=bodies(), signature=st.sampled_from(SIGNATURES), columnar=st.booleans())
def test_bodies_of_v1_and_sagemaker_are_decoded_or_refused(
    body: bytes, other: tuple[bytes, int | None], signature: Signature, columnar: bool
) -> None:
    decoders: list[Callable[[], tuple[InferRequest, tuple[bool, ...]]]] = [
        lambda: decode_predict(body, None, signature),
        lambda: decode_invocation(body, None, signature),
        lambda: decode_invocation(*other, signature),
    ]

    for decode in decoders:

        def check(decode: Callable[[], tuple[InferRequest, tuple[bool, ...]]] = decode) -> None:
            request, _ = decode()
            if request.shared:
                return
            outputs = signature.check_inputs(request.inputs).inputs  # as of a model that answers what it gets
            if outputs.keys() == signature.outputs.keys():
                response = InferResponse("", list(outputs.items()), Answer(Outcome.COMPLETED))
                json.loads(
                    encode_predictions(response, signature, JsonRules(nan=JsonNan.STRING), columnar=columnar).head
                )

        error = refusal(check)
        assert error is None or (http_status(error) == 400 and str(error))


def message(model: str, data: bytes, shape: list[int], datatype: str) -> bytes:
    """A ModelInferRequest with more behind it, which may be fields of it again."""
    request = service_pb2.ModelInferRequest(
        model_name=model, inputs=[{"name": "x", "datatype": datatype, "shape": shape}], raw_input_contents=[data[:8]]
    )
    content: bytes = request.SerializeToString()
    return content + data


MESSAGE = {"data": st.binary(max_size=80), "shape": st.lists(st.integers(-1, 3), max_size=3), "datatype": DATATYPES}


@settings(max_examples=250, deadline=None)
@given(**MESSAGE)
def test_messages_are_decoded_or_refused(data: bytes, shape: list[int], datatype: str) -> None:
    try:
        parsed = service_pb2.ModelInferRequest.FromString(message("m", data, shape, datatype))
    except DecodeError:
        return

    def check() -> None:
        request = decode_message(parsed)
        for signature in SIGNATURES:
            if not request.shared:
                signature.check_inputs(request.inputs)

    error = refusal(check)
    assert error is None or (grpc_status(error) is grpc.StatusCode.INVALID_ARGUMENT and str(error))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("fuzz")
    repository = directory / "models"
    save_identity(repository / "m" / "1" / "model.onnx", DataType.FP32, [2])
    save_identity(repository / "v" / "1" / "model.onnx", DataType.INT8, ["W", 3])
    with gateway_server(repository, directory, {"default_slo_ms": 60_000}) as running:
        yield running


HEADER_NAMES = ["Content-Encoding", "Accept-Encoding", "Inference-Header-Content-Length", "X-Sluice-Explain", "Expect"]
HEADER_VALUES = st.one_of(
    st.sampled_from(["gzip", "deflate", "identity", "gzip;q=0.5, deflate", "0", "-1", "1", "true"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=8),
)


@pytest.mark.behaviour("L0_http_fuzz", "random requests and headers never cause a 500 or a hang")
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    body=bodies(),
    headers=st.dictionaries(st.sampled_from(HEADER_NAMES), HEADER_VALUES, max_size=2),
    model=st.sampled_from("mv"),
    compressed=st.integers(0, 4),
)
def test_the_infer_route_answers_everything(
    server: GatewayServer, body: tuple[bytes, int | None], headers: dict[str, str], model: str, compressed: int
) -> None:
    content, length = body
    if length is not None:
        headers = {"Inference-Header-Content-Length": str(length), **headers}
    if not compressed:
        content, headers = gzip.compress(content), {**headers, "Content-Encoding": "gzip"}
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.putrequest("POST", f"/v2/models/{model}/infer", skip_accept_encoding=True)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(content)
        response = connection.getresponse()
        response.read()
        # 503 is for what cannot be answered in the time that it gives.
        assert response.status in (200, 400, 404, 501, 503)
        assert response.status != 503 or b"timeout" in content or b"slo_ms" in content or compressed == 0
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
    finally:
        connection.close()


@pytest.mark.behaviour("L0_http_fuzz", "random messages never cause INTERNAL or a hang", through="grpc")
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(**MESSAGE)
def test_the_call_answers_everything(server: GatewayServer, data: bytes, shape: list[int], datatype: str) -> None:
    content = message("m", data, shape, datatype)
    good = service_pb2.ModelInferRequest(
        model_name="m", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2]}], raw_input_contents=[bytes(8)]
    )
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary(INFER, None, None)
        code = grpc.StatusCode.OK
        try:
            call(content, timeout=60)
        except grpc.RpcError as error:
            code = error.code()
        assert code in ANSWERS or (code is grpc.StatusCode.UNKNOWN and is_corrupt(content))
        assert call(good.SerializeToString(), timeout=60)


def is_corrupt(content: bytes) -> bool:
    """True if gRPC itself has no message to pass on."""
    try:
        service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        return True
    return False
