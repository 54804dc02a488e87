"""The data plane accepts requests, hands them to the runtime, and reports outcomes."""

import asyncio
import weakref
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.inference.dataplane import build_response
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request import InferRequest, InferResponse, Parameters, WireTensor
from sluice.models import errors
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.tensors.arrays import WireBytes
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.unit.gateway.instant_gateway import ARRIVED_NS, InstantGateway, identity, instant_gateway

MS = 1_000_000
FIXED = identity("m", ("x", DataType.FP32, (2,)))
TWO = identity("two", ("a", DataType.INT32, (1,)), ("b", DataType.INT32, (1,)))
VARIABLE = identity("v", ("x", DataType.FP32, (-1, 3)), ("s", DataType.BYTES, (-1,)))
PARTIAL = msgspec.structs.replace(
    identity("p", ("x", DataType.FP32, (2,))),
    inputs=(
        TensorSpec("x", DataType.FP32, (2,)),
        TensorSpec("k", DataType.FP32, (2,), optional=True),
        TensorSpec("v", DataType.FP32, (-1,), optional=True),
    ),
)
WHOLE = identity("w", ("x", DataType.FP32, (1, 2)), ("s", DataType.BYTES, (2,)), max_batch_size=0)


def x(shape: tuple[int, ...] = (1, 2), data: Any = None, name: str = "x", datatype: str = "FP32") -> WireTensor:
    size = int(np.prod([max(each, 0) for each in shape]))
    return WireTensor(name, datatype, shape, bytes(4 * size) if data is None else data)


def infer(
    served: InstantGateway,
    name: str,
    *inputs: WireTensor,
    outputs: tuple[str, ...] = (),
    parameters: Parameters | None = None,
) -> InferResponse:
    request = InferRequest(list(inputs), outputs, "7", parameters or {})
    return asyncio.run(run(served, name, request))


async def run(served: InstantGateway, name: str, request: InferRequest, budget_ns: int | None = None) -> InferResponse:
    dataplane = served.dataplane
    signature = dataplane.signature(name, "")
    given, options = dataplane.check(signature, request, budget_ns)
    answer = await dataplane.answer(dataplane.submit(signature, given, options))
    return build_response(answer, options)


def test_the_runtime_gets_views_rows_and_deadline() -> None:
    served = instant_gateway(FIXED)
    body = np.arange(6, dtype=np.float32).tobytes()
    response = infer(served, "m", x((3, 2), memoryview(body)))
    (given,) = served.runtime.submitted
    array = given.pop("inputs")["x"]
    assert given == {
        "pipeline": "m:1",
        "rows": 3,
        "batch_key": "",
        "deadline_ns": ARRIVED_NS + 1000 * MS,
        "memory_bytes": 24,
        "id": "7",
        "max_cost": None,
        "priority": 0,
        "client": "",
        "expires_ns": 0,
    }
    assert array.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))
    assert response.id == "7"
    assert [name for name, _ in response.outputs] == ["x"]
    assert served.runtime.released == 0
    response.release()
    response.release()
    assert served.runtime.released == 1


def test_the_time_of_the_network_is_taken_off_the_objective_and_off_the_client_s_own_deadline() -> None:
    served = instant_gateway(FIXED, network_ms=2.5)
    body = np.arange(2, dtype=np.float32).tobytes()
    for budget_ns in (None, 40 * MS):
        asyncio.run(run(served, "m", InferRequest([x((1, 2), memoryview(body))]), budget_ns))
    assert [given["deadline_ns"] - ARRIVED_NS for given in served.runtime.submitted] == [997.5 * MS, 37.5 * MS]


def test_variable_items_make_the_batch_key() -> None:
    served = instant_gateway(VARIABLE)
    strings = WireTensor("s", "BYTES", (2, 2), ["a", "b", "c", "dd"])
    infer(served, "v", strings, x((2, 5, 3)))
    (given,) = served.runtime.submitted
    assert given["batch_key"] == "x=5,3;s=2"
    wire = given["inputs"]["s"]
    assert wire.buffer == b"\1\0\0\0a\1\0\0\0b\1\0\0\0c\2\0\0\0dd"
    assert wire.row_offsets.tolist() == [0, 10, 21]
    assert given["memory_bytes"] == 120 + 21


def test_a_model_without_batch_dimension_gets_one_row() -> None:
    served = instant_gateway(WHOLE)
    infer(served, "w", x((1, 2)), WireTensor("s", "BYTES", (2,), b"\0\0\0\0\1\0\0\0a"))
    (given,) = served.runtime.submitted
    assert given["rows"] == 1
    wire = given["inputs"]["s"]
    assert isinstance(wire, WireBytes)
    assert wire.row_offsets.tolist() == [0, 9]


def test_outputs_come_in_the_order_asked_for() -> None:
    served = instant_gateway(TWO)
    inputs = [x((1, 1), name=name, datatype="INT32") for name in ("a", "b")]
    assert [name for name, _ in infer(served, "two", *inputs).outputs] == ["a", "b"]
    assert [name for name, _ in infer(served, "two", *inputs, outputs=("b", "a")).outputs] == ["b", "a"]
    assert [name for name, _ in infer(served, "two", *inputs, outputs=("b",)).outputs] == ["b"]


@pytest.mark.parametrize(
    ("given", "key"), [(["x"], ""), (["k", "x"], "k=2"), (["x", "v"], "v=2"), (["v", "k", "x"], "k=2;v=2")]
)
def test_the_batch_key_tells_which_optional_inputs_are_there(given: list[str], key: str) -> None:
    served = instant_gateway(PARTIAL)
    infer(served, "p", *(x(name=name) for name in given))
    (submitted,) = served.runtime.submitted
    assert submitted["batch_key"] == key
    assert submitted["inputs"].keys() == set(given)


@pytest.mark.parametrize(
    ("pipeline", "inputs", "kind", "sentence"),
    [
        (
            FIXED,
            [x(name="z")],
            errors.UnknownInput,
            "unexpected inference input 'z' for model 'm': allowed inputs are 'x'",
        ),
        (FIXED, [x(), x()], errors.RequestError, "input 'x' already exists in request: an input may be given once"),
        (
            FIXED,
            [],
            errors.UnknownInput,
            "expected 1 inputs but got 0 inputs for model 'm': missing required input(s) 'x'",
        ),
        (
            PARTIAL,
            [x(name="k")],
            errors.UnknownInput,
            "expected number of inputs between 1 and 3 but got 1 inputs for model 'p': missing required input(s) 'x'",
        ),
        (
            msgspec.structs.replace(PARTIAL, inputs=PARTIAL.inputs[1:]),
            [],
            errors.UnknownInput,
            "expected number of inputs between 1 and 2 but got 0 inputs for model 'p'",
        ),
        (
            FIXED,
            [x(datatype="FP64")],
            errors.BadTensor,
            "inference input 'x' data-type is 'FP64', but model 'm' expects 'FP32'",
        ),
        (
            FIXED,
            [x((1, 3))],
            errors.ShapeMismatch,
            "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got [1,3]",
        ),
        (FIXED, [x(())], errors.ShapeMismatch, "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got []"),
        (
            FIXED,
            [x((2,))],
            errors.ShapeMismatch,
            "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got [2]",
        ),
        (FIXED, [x((0, 2))], errors.ShapeMismatch, "input 'x' is a zero-size batch: expected 1 to 8 rows"),
        (FIXED, [x((-1, 2))], errors.ShapeMismatch, "input 'x' has -1 rows: expected 1 to 8 rows"),
        (
            FIXED,
            [x((9, 2))],
            errors.ShapeMismatch,
            "inference request batch-size must be <= 8 for 'm': input 'x' has 9 rows",
        ),
        (
            FIXED,
            [x(data=b"1234")],
            errors.BadTensor,
            "input 'x' has 4 bytes of data, but its shape [1,2] of FP32 takes 8",
        ),
        (
            FIXED,
            [x(data=np.zeros(3, np.float32))],
            errors.BadTensor,
            "input 'x' has 3 elements, but its shape [1,2] takes 2",
        ),
        (
            TWO,
            [x((1, 1), name="a", datatype="INT32"), x((2, 1), name="b", datatype="INT32")],
            errors.ShapeMismatch,
            "input 'b' batch size does not match other inputs for 'two': it has 2 rows, 'a' has 1",
        ),
        (
            VARIABLE,
            [x((1, -1, 3))],
            errors.ShapeMismatch,
            "unexpected shape for input 'x' for model 'v'. Expected [-1,-1,3], got [1,-1,3]",
        ),
        (
            VARIABLE,
            [x((1, 2**62, 3), data=b"")],
            errors.BadTensor,
            f"input 'x' has 0 bytes of data, but its shape [1,{2**62},3] of FP32 takes {12 * 2**62}",
        ),
        (
            WHOLE,
            [x((2, 2))],
            errors.ShapeMismatch,
            "unexpected shape for input 'x' for model 'w'. Expected [1,2], got [2,2]",
        ),
    ],
)
def test_wrong_inputs_are_refused_with_what_was_expected(
    pipeline: Pipeline, inputs: list[WireTensor], kind: type[Exception], sentence: str
) -> None:
    served = instant_gateway(pipeline)
    with pytest.raises(kind) as caught:
        infer(served, pipeline.name, *inputs)
    assert str(caught.value) == sentence
    assert served.runtime.submitted == []


def test_malformed_bytes_are_refused_by_name() -> None:
    with pytest.raises(errors.BadTensor, match=r"^input 's': 2 elements take at least 8 bytes"):
        infer(instant_gateway(WHOLE), "w", x(), WireTensor("s", "BYTES", (2,), b"\0\0\0\0"))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\1\0\0\0a\2\0\0\0\xc3(", "input 's': element 1 is not UTF-8 text, as the strings of ONNX models must be"),
        ([b"\xff", b"a"], "input 's': element 0 is not UTF-8 text, as the strings of ONNX models must be"),
        (["a", "\ud800"], "input 's' has a string that UTF-8 cannot carry"),
    ],
)
def test_strings_that_are_not_utf8_are_refused_by_name(data: bytes | list[bytes] | list[str], sentence: str) -> None:
    served = instant_gateway(msgspec.structs.replace(WHOLE, text_inputs=("s",)))
    with pytest.raises(errors.BadTensor) as caught:
        infer(served, "w", x(), WireTensor("s", "BYTES", (2,), data))
    assert str(caught.value) == sentence
    assert served.runtime.submitted == []


@pytest.mark.parametrize("data", [b"\1\0\0\0a\2\0\0\0\xc3(", [b"\xff", b"a"]])
def test_bytes_of_other_models_are_any(data: bytes | list[bytes]) -> None:
    served = instant_gateway(WHOLE)
    infer(served, "w", x(), WireTensor("s", "BYTES", (2,), data))
    assert len(served.runtime.submitted) == 1


def test_utf8_of_any_length_is_accepted() -> None:
    served = instant_gateway(msgspec.structs.replace(WHOLE, text_inputs=("s",)))
    long = b"\xe2\x82\xac" * 100
    data = b"\x2c\1\0\0" + long + b"\2\0\0\0\xc3\xa9"
    infer(served, "w", x(), WireTensor("s", "BYTES", (2,), memoryview(data)))
    assert served.runtime.submitted[0]["inputs"]["s"].nbytes == 4 + 300 + 4 + 2


def test_outputs_must_exist_and_be_asked_for_once() -> None:
    served = instant_gateway(FIXED)
    with pytest.raises(
        errors.UnknownOutput, match="unexpected inference output 'z' for model 'm': allowed outputs are 'x'"
    ):
        infer(served, "m", x(), outputs=("x", "z"))
    with pytest.raises(errors.RequestError, match="output 'x' already exists in request"):
        infer(served, "m", x(), outputs=("x", "x"))


@pytest.mark.parametrize(
    ("parameters", "budget_ns", "due_ms"),
    [
        ({}, None, 50),
        ({"slo_ms": 20}, None, 20),
        ({"slo_ms": 80.5}, None, 50),
        ({"timeout": 30_000}, None, 30),
        ({"timeout": 0}, None, 50),
        ({"timeout": 30_000}, 10 * MS, 10),
        ({"timeout": 5_000}, 10 * MS, 5),
        ({"slo_ms": 4}, 10 * MS, 4),
        ({}, 10 * MS, 10),
        ({"priority": 2, "mine": "kept"}, None, 50),
        ({"sequence_id": 0, "sequence_start": False}, None, 50),
        ({"sequence_id": ""}, None, 50),
    ],
)
def test_the_soonest_objective_is_the_deadline(parameters: Parameters, budget_ns: int | None, due_ms: int) -> None:
    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,)), slo_ms=50.0))
    asyncio.run(run(served, "m", InferRequest([x()], (), "", parameters), budget_ns))
    assert served.runtime.submitted[0]["deadline_ns"] == ARRIVED_NS + due_ms * MS


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ({"slo_ms": float("nan")}, errors.RequestError),
        ({"slo_ms": 0}, errors.RequestError),
        ({"slo_ms": "5"}, errors.RequestError),
        ({"timeout": -1}, errors.RequestError),
        ({"timeout": 1.5}, errors.RequestError),
        ({"timeout": True}, errors.RequestError),
        ({"triton_x": 1}, errors.RequestError),
        ({"headers": "h"}, errors.RequestError),
        ({"sequence_id": 1.5}, errors.RequestError),
        ({"sequence_id": True}, errors.RequestError),
        ({"sequence_id": 1 << 64}, errors.RequestError),
        ({"sequence_id": "x" * 129}, errors.RequestError),
        ({"sequence_start": 1, "sequence_id": 3}, errors.RequestError),
        ({"sequence_end": "true", "sequence_id": 3}, errors.RequestError),
        ({"priority": -1}, errors.RequestError),
        ({"priority": 1.0}, errors.RequestError),
        ({"priority": True}, errors.RequestError),
        ({"max_cost": -0.1}, errors.RequestError),
        ({"max_cost": float("inf")}, errors.RequestError),
        ({"max_cost": float("nan")}, errors.RequestError),
        ({"max_cost": "1"}, errors.RequestError),
        ({"max_cost": True}, errors.RequestError),
        ({"min_accuracy": 0.5}, errors.RequestError),
        ({"min_accuracy": 1.5}, errors.RequestError),
        ({"min_accuracy": True}, errors.RequestError),
        ({"max_latency_ms": 0}, errors.RequestError),
        ({"max_latency_ms": "5"}, errors.RequestError),
        ({"max_latency_ms": 5, "slo_ms": 5}, errors.RequestError),
        ({"start_after_ms": -1}, errors.RequestError),
        ({"start_after_ms": 60_000.1}, errors.RequestError),
        ({"start_after_ms": True}, errors.RequestError),
        ({"start_after_ms": "5"}, errors.RequestError),
        ({"sluice_explain": 1}, errors.RequestError),
    ],
)
def test_bad_parameters_are_refused_by_name(parameters: Parameters, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"parameter '{next(iter(parameters))}'"):
        infer(instant_gateway(FIXED), "m", x(), parameters=parameters)


@pytest.mark.parametrize("priority", [0, 1, 2**64 - 1])
def test_a_priority_is_part_of_the_terms(priority: int) -> None:
    served = instant_gateway(FIXED)
    request = InferRequest([x()], (), "", {"priority": priority})
    assert served.dataplane.check(served.dataplane.signature("m", ""), request)[1].priority == priority


@pytest.mark.parametrize(
    ("parameters", "priority", "expires_ns"),
    [
        ({}, 0, 0),
        ({"priority": 3, "timeout": 30_000}, 3, ARRIVED_NS + 30 * MS),
        ({"priority": 2**64, "timeout": 2**64 - 1}, 0, ARRIVED_NS + 2**62),
    ],
)
def test_priority_and_timeout_reach_the_runtime(parameters: Parameters, priority: int, expires_ns: int) -> None:
    served = instant_gateway(FIXED)
    infer(served, "m", x(), parameters=parameters)
    (given,) = served.runtime.submitted
    assert (given["priority"], given["expires_ns"]) == (priority, expires_ns)


def test_the_most_time_that_a_request_may_take_is_its_deadline() -> None:
    served = instant_gateway(FIXED)
    infer(served, "m", x(), parameters={"max_latency_ms": 12.5})
    assert served.runtime.submitted[0]["deadline_ns"] == ARRIVED_NS + 12_500_000


def test_deadlines_count_from_the_start_of_a_request_that_is_sent_ahead_but_not_the_client_s_own() -> None:
    for parameters, budget_ns, expected_ms in (
        ({"start_after_ms": 250}, None, 1250.0),
        ({"start_after_ms": 250, "slo_ms": 30, "timeout": 20_000}, None, 270.0),
        ({"start_after_ms": 60_000, "slo_ms": 30}, 400 * MS, 400.0),
    ):
        served = instant_gateway(FIXED)
        asyncio.run(run(served, "m", InferRequest([x()], parameters=parameters), budget_ns))
        assert served.runtime.submitted[0]["deadline_ns"] - ARRIVED_NS == expected_ms * MS


@pytest.mark.parametrize(("value", "cost"), [(0, 0.0), (2e-6, 2e-6), (3, 3.0)])
def test_the_most_that_a_request_may_cost_reaches_the_runtime(value: float, cost: float) -> None:
    served = instant_gateway(FIXED)
    infer(served, "m", x(), parameters={"max_cost": value})
    assert served.runtime.submitted[0]["max_cost"] == cost


@pytest.mark.parametrize(
    ("outcome", "kind", "sentence"),
    [
        (Outcome.REJECTED_QUEUE_FULL, errors.RejectedError, "Exceeds maximum queue size: why"),
        (Outcome.REJECTED_COST, errors.RejectedError, "the request cannot be answered at that price: why"),
        (Outcome.REJECTED_DRAINING, errors.RejectedError, "the server is stopping: why"),
        (Outcome.EVICTED_DEADLINE, errors.EvictedError, "Request timeout expired: why"),
        (Outcome.REJECTED_UNAVAILABLE, errors.BackendUnavailable, "the model is not at ready state: why"),
        (Outcome.FAILED_BACKEND, errors.BackendFailed, "the model failed: why"),
        (Outcome.CANCELLED_CLIENT, errors.CancelledError, "the request was cancelled: why"),
    ],
)
def test_outcomes_without_answer_are_errors_with_the_reason(
    outcome: Outcome, kind: type[Exception], sentence: str
) -> None:
    served = instant_gateway(FIXED)
    served.runtime.answer = Answer(outcome, "why", 4)
    with pytest.raises(kind) as caught:
        infer(served, "m", x())
    assert str(caught.value) == sentence
    if isinstance(caught.value, errors.OverloadError):
        assert caught.value.retry_after_s == 4


def test_cancelling_the_caller_cancels_the_request() -> None:
    served = instant_gateway(FIXED)
    served.runtime.hold = True

    async def main() -> None:
        task = asyncio.create_task(run(served, "m", InferRequest([x()])))
        await asyncio.sleep(0)
        assert served.runtime.cancelled == []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert served.runtime.cancelled == [1]


def test_what_is_not_served_any_more_is_forgotten() -> None:
    served = instant_gateway(FIXED, TWO, VARIABLE)
    gone = weakref.ref(served.dataplane.signature("m", ""))
    kept = served.dataplane.signature("two", "")
    served.registry.set_unavailable("m", {})
    served.dataplane.signature("v", "")
    assert gone() is None
    assert served.dataplane.signature("two", "1") is kept


def test_parameters_that_are_too_long_to_go_on_to_a_model_are_refused() -> None:
    served = instant_gateway(FIXED)
    signature = served.dataplane.signature("m", "")

    def parameters(length: int) -> str:
        given: Parameters = {"known": "a" * length, "slo_ms": 100}
        return served.dataplane.check(signature, InferRequest([x()], (), "", given))[1].parameters

    assert parameters(60_000) == f'{{"known":"{"a" * 60_000}"}}'
    with pytest.raises(errors.RequestError, match=r"^the parameters have 70012 bytes of JSON, expected at most 65536$"):
        parameters(70_000)
