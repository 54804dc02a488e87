"""Sequences through the real tritonclient on a real server, as Triton's examples and tests of sequences send them.

The models behave as `simple_sequence` and `simple_dyna_sequence` of Triton's examples; `sum` keeps a state.
"""

import os
import queue
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.sequence_models import (
    PATIENT,
    save_accumulator,
    save_initial_state,
    save_simple_dyna_sequence,
    save_simple_sequence,
)

VALUES = [11, 7, 5, 3, 2, 0]
COUNT_CALLS = """
import numpy as np
seen = {}
def infer(inputs):
    for start, id in zip(inputs["START"].ravel(), inputs["CORRID"].ravel()):
        seen[int(id)] = 1 if start else seen[int(id)] + 1
    return {"OUTPUT": np.array([[seen[int(id)]] for id in inputs["CORRID"].ravel()], np.int32)}
"""
COUNTER = f"""
backend: "python" max_batch_size: 4
input {{ name: "INPUT" data_type: TYPE_INT32 dims: 1 }}
output {{ name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }}
sequence_batching {{ {PATIENT} oldest {{ max_candidate_sequences: 8 }}
  control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }} }}
  control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 }} }} }}
"""
CALLS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
        value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        id, flags = request.correlation_id(), request.flags()
        if not id:  # a row without a request
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("nobody asked"))
        assert bool(start.item()) == bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        if value.item() < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
        call = pb_utils.InferenceRequest(
            model_name="sum", requested_output_names=["OUTPUT"], inputs=[pb_utils.Tensor("INPUT", value)],
            correlation_id=id, flags=flags,
        )
        answer = call.exec()
        return answer if answer.has_error() else pb_utils.InferenceResponse(answer.output_tensors())
"""
CALLER = f"""
backend: "python" max_batch_size: 4
input {{ name: "INPUT" data_type: TYPE_INT32 dims: 1 }}
output {{ name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }}
sequence_batching {{ {PATIENT} direct {{ }}
  control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }} }} }}
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "a" data_type: TYPE_INT32 dims: 1 }
output { name: "b" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling { step [
  { model_name: "simple_sequence" model_version: -1
    input_map { key: "INPUT" value: "a" } output_map { key: "OUTPUT" value: "between" } },
  { model_name: "sum" model_version: -1
    input_map { key: "INPUT" value: "between" } output_map { key: "OUTPUT" value: "b" } }
] }
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "front ends"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("sequences")
    repository = directory / "models"
    save_simple_sequence(repository / "simple_sequence", PATIENT)
    save_simple_dyna_sequence(repository / "simple_dyna_sequence", PATIENT)
    save_accumulator(repository / "sum", PATIENT)
    save_accumulator(repository / "sum_from_zero", PATIENT, initial="zero_data: true")
    save_accumulator(repository / "sum_from_100", PATIENT, initial="data_file: 'begin'")
    save_initial_state(repository / "sum_from_100", 100)
    save_accumulator(repository / "unbatched", PATIENT, rows=0)
    save_accumulator(repository / "brief", "max_sequence_idle_microseconds: 6000000", rows=1)
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    for name, form, text in (("counter", COUNTER, COUNT_CALLS), ("caller", CALLER, CALLS)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(form)
        (repository / name / "1" / "model.py").write_text(text)
    config: dict[str, object] = {"partitions": 2, "default_slo_ms": 60_000, "front_ends": request.param}
    with gateway_server(repository, directory, config) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: GatewayServer) -> Iterator[Any]:
    if request.param == "http":
        with tritonclient.http.InferenceServerClient(server.http_url, concurrency=8) as over_http:
            yield over_http
    else:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as over_grpc:
            yield over_grpc


def tensor(client: Any, model: str, value: int) -> Any:
    module = tritonclient.http if isinstance(client, tritonclient.http.InferenceServerClient) else tritonclient.grpc
    shape = [1] if model == "unbatched" else [1, 1]
    made = module.InferInput("a" if model == "both" else "INPUT", shape, "INT32")
    made.set_data_from_numpy(np.full(shape, value, np.int32))
    return made


def infer(client: Any, model: str, value: int, **sequence: Any) -> int:
    result = client.infer(model, [tensor(client, model, value)], **sequence)
    return int(result.as_numpy("b" if model == "both" else "OUTPUT").ravel()[0])


def whole(client: Any, model: str, values: Sequence[int], id: int | str) -> list[int]:
    """Send a sequence of these values; returns the answers."""
    last = len(values) - 1
    return [
        infer(client, model, value, sequence_id=id, sequence_start=turn == 0, sequence_end=turn == last)
        for turn, value in enumerate(values)
    ]


@pytest.mark.behaviour("L0_sequence_batcher", "the sequences of Triton's examples are answered as there")
@pytest.mark.parametrize(
    ("model", "answers"),
    [
        ("simple_sequence", [12, 7, 5, 3, 2, 0]),
        ("simple_dyna_sequence", [12, 7, 5, 3, 2, 1001]),
        ("sum", [11, 18, 23, 26, 28, 28]),
        ("sum_from_zero", [11, 18, 23, 26, 28, 28]),
        ("sum_from_100", [111, 118, 123, 126, 128, 128]),
        ("unbatched", [11, 18, 23, 26, 28, 28]),
        ("counter", [1, 2, 3, 4, 5, 6]),
        ("both", [12, 19, 24, 27, 29, 29]),
    ],
)
def test_a_sequence_is_answered_by_its_state(client: Any, model: str, answers: list[int]) -> None:
    assert whole(client, model, VALUES, 1001) == answers
    assert whole(client, model, VALUES, 1001) == answers, "the same id may begin again"


def test_an_id_may_be_a_text(client: Any) -> None:
    assert whole(client, "sum", [1, 2, 3], "a client") == [1, 3, 6]


def test_many_sequences_at_a_time_do_not_mix(client: Any) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda id: whole(client, "sum", [id] * 10, id), range(1, 41)))
    assert found == [[id * turn for turn in range(1, 11)] for id in range(1, 41)]


def test_requests_of_a_stream_run_in_order_without_waiting_for_answers(server: GatewayServer) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for turn in range(30):
            for id in (21, 22, 23):
                client.async_stream_infer(
                    "sum",
                    [tensor(client, "sum", turn)],
                    request_id=f"{id}_{turn}",
                    sequence_id=id,
                    sequence_start=turn == 0,
                    sequence_end=turn == 29,
                )
        found: dict[str, int] = {}
        for _ in range(90):
            result, error = answers.get(timeout=60)
            assert error is None
            found[result.get_response().id] = int(result.as_numpy("OUTPUT")[0, 0])
        client.stop_stream()
    assert found == {f"{id}_{turn}": sum(range(turn + 1)) for id in (21, 22, 23) for turn in range(30)}


@pytest.mark.behaviour("L0_sequence_batcher", "a request that belongs to no sequence is refused in Triton's words")
def test_what_belongs_to_no_sequence_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="to model 'sum' must specify a non-zero or non-empty correl"):
        infer(client, "sum", 1)
    with pytest.raises(InferenceServerException, match="for sequence 99 to model 'sum' must specify the START flag"):
        infer(client, "sum", 1, sequence_id=99)
    with pytest.raises(InferenceServerException, match="control 'CORRID' data-type is 'BYTES', but model 'simple_dyna"):
        infer(client, "simple_dyna_sequence", 1, sequence_id="text", sequence_start=True)


def test_an_idle_sequence_ends_and_others_get_its_slot(client: Any) -> None:
    """The model has one slot on each of the two partitions: the third sequence waits for one of the first two."""
    assert [infer(client, "brief", 1, sequence_id=id, sequence_start=True) for id in (1, 2, 3)] == [1, 1, 1]
    assert infer(client, "brief", 5, sequence_id=3, sequence_end=True) == 6
    with pytest.raises(InferenceServerException, match="sequence 1 to model 'brief' must specify the START flag"):
        infer(client, "brief", 1, sequence_id=1)


def test_the_end_of_a_models_process_ends_its_sequences(tmp_path: Path) -> None:
    (tmp_path / "models" / "counter" / "1").mkdir(parents=True)
    (tmp_path / "models" / "counter" / "config.pbtxt").write_text(COUNTER)
    (tmp_path / "models" / "counter" / "1" / "model.py").write_text(COUNT_CALLS)
    with (
        gateway_server(tmp_path / "models", tmp_path, {"partitions": 1, "default_slo_ms": 60_000}) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        assert infer(client, "counter", 0, sequence_id=1, sequence_start=True) == 1
        (worker,) = children(server.process.pid)
        (model,) = children(worker)
        os.kill(model, signal.SIGKILL)
        with pytest.raises(InferenceServerException, match="killed by SIGKILL, with the states of its sequences"):
            infer(client, "counter", 0, sequence_id=1)
        with pytest.raises(InferenceServerException, match="sequence 1 to model 'counter' must specify the START"):
            infer(client, "counter", 0, sequence_id=1)
        assert whole(client, "counter", [0, 0, 0], 1) == [1, 2, 3]


def test_a_lost_worker_ends_its_sequences_and_they_may_start_again(tmp_path: Path) -> None:
    save_accumulator(tmp_path / "models" / "sum", PATIENT)
    config: dict[str, object] = {"partitions": 1, "default_slo_ms": 60_000}
    with (
        gateway_server(tmp_path / "models", tmp_path, config) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        assert infer(client, "sum", 1, sequence_id=1, sequence_start=True) == 1
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: children(server.process.pid) not in ([], [worker]))
        with pytest.raises(InferenceServerException, match="sequence 1 to model 'sum' must specify the START flag"):
            infer(client, "sum", 1, sequence_id=1)
        assert whole(client, "sum", [1, 2, 3], 1) == [1, 3, 6]


@pytest.mark.behaviour("L0_sequence_batcher", "a Python model sees the sequence of a request", through="http grpc")
def test_a_model_in_python_sees_sequences_and_calls_others_within_them(server: GatewayServer, client: Any) -> None:
    def ask(id: int) -> list[int]:
        with tritonclient.http.InferenceServerClient(server.http_url) as over_http:
            return whole(over_http, "caller", [id, 7, 5], id)

    assert whole(client, "caller", [11, 7, 5], 40) == [11, 18, 23]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(ask, range(50, 56))) == [[id, id + 7, id + 12] for id in range(50, 56)]
    assert infer(client, "caller", 3, sequence_id=41, sequence_start=True) == 3
    with pytest.raises(InferenceServerException, match="negative"):
        infer(client, "caller", -1, sequence_id=41)
    assert infer(client, "caller", 4, sequence_id=41, sequence_end=True) == 7
