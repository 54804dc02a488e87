"""The process of a decoupled model, and what its model may do with its response sender."""

import json
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.models.backends import python
from sluice.models.backends.calling import BatchBroke, BatchRan, Progress, ResponseMade
from sluice.models.backends.requests import FailureCode, RequestPart
from sluice.models.errors import BackendFailed
from sluice.models.measuring.quick import measure_table

CONFIG: dict[str, Any] = {
    "name": "m",
    "backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [
        {"name": "y", "data_type": "TYPE_INT32", "dims": [1]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [-1]},
    ],
    "model_transaction_policy": {"decoupled": True},
}
HEAD = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def y(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([number], np.int32))])

def text(*words):
    return pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array([w.encode() for w in words], np.object_))])

class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = []

    def execute(self, requests):
        (request,) = requests
        sender = request.get_response_sender()
        x = int(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0])
"""
END = "        sender.send(flags=FINAL)\n"

TIMEOUT_MS = 60_000


class Driver:
    """Runs one batch after another on a backend, as a worker does."""

    def __init__(self, backend: python.PythonBackend) -> None:
        self.backend = backend
        self._batch = 0
        self._came: list[Progress] = []

    def begin(self, x: int = 0, *requests: RequestPart) -> None:
        self._batch += 1
        self._came += self.backend.start(self._batch, {"x": np.array([x], np.int32)}, requests)

    def receive(self) -> ResponseMade | None:
        """The next response; None at the end of the batch. Raises BackendFailed if it has failed."""
        ready = select.poll()
        for descriptor in self.backend.filenos():
            ready.register(descriptor, select.POLLIN)
        while not self._came:
            assert ready.poll(TIMEOUT_MS), "the model says nothing"
            self._came += self.backend.resume()
        came = self._came.pop(0)
        assert came.batch == self._batch
        if isinstance(came, BatchBroke):
            raise BackendFailed(came.message)
        if isinstance(came, BatchRan):
            assert came.outputs == {}
            return None
        assert isinstance(came, ResponseMade)
        return came

    def taken(self) -> None:
        self.backend.taken(self._batch)

    def cancel(self) -> None:
        self.backend.cancel(self._batch)


Load = Callable[..., Driver]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def made(*lines: str, end: str = END) -> Driver:
        path = tmp_path / "1" / "model.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEAD + "".join(f"        {line}\n" for line in lines) + end)
        return Driver(python.load(str(path), 1, json.dumps(CONFIG)))

    return made


def responses(backend: Driver, x: int = 0, *requests: RequestPart) -> list[Any]:
    """The responses of a run: values by output, errors, and "final" for the mark alone; then None."""
    backend.begin(x, *requests)
    sent: list[Any] = []
    while (response := backend.receive()) is not None:
        values = {name: array.tolist() for name, array in response.outputs.items()}
        sent.append(response.error or values or "final")
        if response.is_final and not response.is_empty:
            sent.append("with the final mark")
        backend.taken()
    return sent


def test_responses_have_some_of_the_outputs_of_any_shape(load: Load) -> None:
    backend = load("for number in range(x): sender.send(y(number))", "sender.send(text('a', 'bc'))")
    assert responses(backend, 2) == [{"y": [0]}, {"y": [1]}, {"text": [b"a", b"bc"]}, "final"]
    assert responses(backend) == [{"text": [b"a", b"bc"]}, "final"]


def test_the_last_response_may_carry_the_final_mark(load: Load) -> None:
    assert responses(load("sender.send(y(x), FINAL)", end="")) == [{"y": [0]}, "with the final mark"]


def test_another_thread_sends_after_execute_has_returned(load: Load) -> None:
    backend = load(
        "def later():",
        "    for number in range(3): sender.send(y(number))",
        "    sender.send(flags=FINAL)",
        "threading.Timer(0.05, later).start()",
        end="",
    )
    assert [responses(backend) for _ in range(2)] == [[{"y": [0]}, {"y": [1]}, {"y": [2]}, "final"]] * 2


def test_threads_may_send_at_once(load: Load) -> None:
    backend = load(
        "threads = [threading.Thread(target=sender.send, args=(y(number),)) for number in range(8)]",
        "for thread in threads: thread.start()",
        "for thread in threads: thread.join()",
    )
    sent = responses(backend)
    assert sorted(each["y"][0] for each in sent[:-1]) == list(range(8))
    assert sent[-1] == "final"


def test_a_model_sees_the_id_and_the_parameters_of_its_request(load: Load) -> None:
    backend = load("sender.send(text(request.request_id(), request.parameters()))")
    request = RequestPart(1, "seven", '{"temperature": 0}')
    assert responses(backend, 0, request) == [{"text": [b"seven", b'{"temperature": 0}']}, "final"]


def test_execute_may_be_a_coroutine(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD.replace("def execute", "async def execute") + "        sender.send(y(x))\n" + END)
    assert responses(Driver(python.load(str(path), 1, json.dumps(CONFIG))), 4) == [{"y": [4]}, "final"]


def test_an_error_is_a_response(load: Load) -> None:
    backend = load("sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no')))")
    assert responses(backend) == ["no", "final"]


def test_an_error_has_its_code(load: Load) -> None:
    backend = load(
        "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND)))"
    )
    backend.begin()
    response = backend.receive()
    assert response is not None
    assert (response.error, response.code) == ("no", FailureCode.NOT_FOUND)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["sender.send(flags=FINAL)"], "unable to send response. Response sender has been closed."),
        (["sender.send()"], "Inference Response object must be provided when the response flags is set to zero."),
        (["sender.send(flags=7)"], "unable to send response. Unsupported flag '7' provided."),
        (["sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('z', np.zeros(1))]))"], "has no such output"),
        (["sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('y', np.zeros(1))]))"], "expected INT32, got FP64"),
        (["return [y(1)]"], "execute: expected None of a decoupled model, which sends its responses"),
        (["return"], "the model has dropped its response sender without a final response"),
        (["raise ValueError('broken')"], "ValueError: broken"),
    ],
)
def test_what_a_model_must_not_do_fails_its_run_alone(load: Load, lines: list[str], message: str) -> None:
    closes = lines == ["sender.send(flags=FINAL)"]
    backend = load("if x:", *(f"    {line}" for line in lines * (2 if closes else 1)))
    with pytest.raises(BackendFailed, match=message.replace(".", r"\.")):
        responses(backend, 1)
    assert responses(backend) == ["final"]


def test_a_process_that_ends_fails_its_run_and_is_restarted(load: Load) -> None:
    backend = load("if x:", "    sender.send(y(x))", "    import os; os._exit(3)")
    backend.begin(1)
    assert backend.receive() is not None
    backend.taken()
    with pytest.raises(BackendFailed, match="the process of the model exited with status 3"):
        backend.receive()
    assert responses(backend) == ["final"]


def test_a_model_hears_of_a_cancellation_and_its_responses_are_dropped(load: Load) -> None:
    backend = load(
        "if x:",
        "    sender.send(y(x))",
        "    while not request.is_cancelled(): pass",
        "    self.cancelled.append(sender.is_cancelled())",
        "    for _ in range(1000): sender.send(y(x))",
        "else:",
        "    sender.send(text(str(self.cancelled), str(request.is_cancelled())))",
    )
    backend.begin(1)
    assert backend.receive() is not None
    backend.taken()
    backend.cancel()
    assert backend.receive() is None
    assert responses(backend) == [{"text": [b"[True]", b"False"]}, "final"]


def test_a_run_for_its_time_alone_drops_its_responses(load: Load) -> None:
    backend = load("sender.send(y(x))", "sender.send(pb_utils.InferenceResponse(error='no'))")
    assert backend.backend.run({"x": np.array([1], np.int32)}) == {}
    assert measure_table(backend.backend, False, (1,), repeats=1).latency_ns(1) > 0


def test_a_function_cannot_send_responses(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("def infer(inputs):\n    return inputs\n")
    with pytest.raises(BackendFailed, match="expected a class TritonPythonModel"):
        python.load(str(path), 1, json.dumps(CONFIG))
