"""Calls of other models from the threads and tasks of a model, and what its errors and its end do to others."""

import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.models.backends import python
from sluice.models.backends.calling import BatchBroke, BatchRan, CallMade, Progress
from sluice.models.backends.python import PythonBackend
from sluice.models.backends.requests import CallResult, FailureCode, RequestPart

CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
}
HEAD = """
import asyncio, os
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

def x_of(request):
    return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()

def call(request):
    given = pb_utils.Tensor("x", x_of(request))
    return pb_utils.InferenceRequest(model_name="other", requested_output_names=["y"], inputs=[given])

def answer(y):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])

"""
IN_A_POOL = """
class TritonPythonModel:
    def initialize(self, args):
        self.pool = ThreadPoolExecutor(2)

    def execute(self, requests):
        calls = [self.pool.submit(lambda: call(request).exec()) for request in requests for _ in range(3)]
        for each in calls:
            each.result()
        return [answer(x_of(request)) for request in requests]
"""
IN_TASKS = """
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(asyncio.to_thread(call(request).exec) for request in requests for _ in range(3)))
        return [answer(x_of(request)) for request in requests]
"""
X = np.ones((1, 1), np.float32)
PART = (RequestPart(1),)
DONE = CallResult()
TIMEOUT_MS = 60_000


def load(directory: Path, text: str) -> PythonBackend:
    path = directory / "model.py"
    path.write_text(HEAD + text)
    return python.load(str(path), 1, json.dumps(CONFIG))


def run(
    backend: PythonBackend, batches: int, on_call: Callable[[CallMade], None] | None = None
) -> dict[int, BatchRan | BatchBroke]:
    """Start batches one after the other, then answer all calls until every batch has ended."""
    ended: dict[int, BatchRan | BatchBroke] = {}
    calls: list[CallMade] = []

    def take(progress: list[Progress]) -> None:
        for each in progress:
            if isinstance(each, CallMade):
                os.close(each.fd)
                calls.append(each)
            elif isinstance(each, BatchRan | BatchBroke):
                ended[each.batch] = each

    for batch in range(1, batches + 1):
        take(backend.start(batch, {"x": X}, PART))
    while len(ended) < batches:
        while calls:
            (on_call or (lambda made: backend.answer(made.call, DONE, ())))(calls.pop(0))
        poll = select.poll()
        for fileno in backend.filenos():
            poll.register(fileno, select.POLLIN)
        assert poll.poll(TIMEOUT_MS), "nothing comes any more"
        take(backend.resume())
    return ended


@pytest.mark.parametrize("text", [IN_A_POOL, IN_TASKS], ids=["pool", "tasks"])
def test_batches_whose_calls_share_threads_do_not_wait_for_each_other(tmp_path: Path, text: str) -> None:
    backend = load(tmp_path, text)
    ended = run(backend, 3)
    assert [type(ended[batch]) for batch in (1, 2, 3)] == [BatchRan] * 3


def test_a_model_may_hold_a_lock_while_it_calls(tmp_path: Path) -> None:
    text = """
import threading
from sluice.models.backends.python_models import calls
calls.TURN_LIMIT_S = 0.1

class TritonPythonModel:
    def initialize(self, args):
        self.lock = threading.Lock()

    def execute(self, requests):
        with self.lock:
            call(requests[0]).exec()
        return [answer(x_of(request)) for request in requests]
"""
    ended = run(load(tmp_path, text), 3)
    assert [type(ended[batch]) for batch in (1, 2, 3)] == [BatchRan] * 3


def test_a_call_that_a_thread_makes_when_its_batch_has_ended_harms_no_batch(tmp_path: Path) -> None:
    text = """
class TritonPythonModel:
    def initialize(self, args):
        self.pool = ThreadPoolExecutor(3)
        self.left = []

    def execute(self, requests):
        for each in self.left:
            each.exception(60)  # the calls of the batch before have an answer
        self.left = [self.pool.submit(call(requests[0]).exec) for _ in range(3)]
        return [answer(np.full((1, 1), os.getpid(), np.float32)) for _ in requests]
"""
    backend = load(tmp_path, text)
    pids = set()
    for _ in range(20):
        # Calls that come with the end of the batch are never answered. Later ones may be taken for calls of the next
        # batch, which waits for them.
        ran = run(backend, 1)[1]
        assert isinstance(ran, BatchRan)
        pids.add(ran.outputs["y"].item())
    assert len(pids) == 1


def test_a_model_may_give_up_a_call_and_make_another(tmp_path: Path) -> None:
    text = """
class TritonPythonModel:
    async def execute(self, requests):
        try:
            await asyncio.wait_for(call(requests[0]).async_exec(), 0.001)
        except TimeoutError:
            pass
        await call(requests[0]).async_exec()
        return [answer(x_of(request)) for request in requests]
"""
    backend = load(tmp_path, text)
    late: list[CallMade] = []

    def answer(made: CallMade) -> None:
        late.append(made)
        if len(late) == 2:
            for each in late:
                backend.answer(each.call, DONE, ())

    for _ in range(2):
        assert isinstance(run(backend, 1, answer)[1], BatchRan)
        late.clear()


@pytest.mark.parametrize(
    ("error", "message"), [('"bad \\udcff name"', "bad ? name"), ('"x" * 3_000_000', "x" * 4000)], ids=["text", "long"]
)
def test_any_text_may_be_the_error_of_a_request(tmp_path: Path, error: str, message: str) -> None:
    text = f"""
class TritonPythonModel:
    def execute(self, requests):
        if len(requests) < 2:
            return [answer(x_of(requests[0]))]
        error = pb_utils.TritonError({error}, pb_utils.TritonError.NOT_FOUND)
        return [pb_utils.InferenceResponse(error=error), answer(x_of(requests[1]))]
"""
    backend = load(tmp_path, text)
    (ran,) = backend.start(1, {"x": np.ones((2, 1), np.float32)}, PART * 2)
    assert isinstance(ran, BatchRan)
    assert [(each.position, each.message, each.code) for each in ran.errors] == [(0, message, FailureCode.NOT_FOUND)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("request_id=7", "request_id: expected str, got int"),
        ("timeout=1.5", "'float' object cannot be interpreted as an integer"),
        ("timeout=-1", "timeout: expected microseconds or 0, got -1"),
        ("parameters={'a': [1]}", "parameters: 'a': expected a str, int, float or bool by a name, got list"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_where_it_is_written(
    tmp_path: Path, arguments: str, message: str
) -> None:
    text = f"""
class TritonPythonModel:
    def execute(self, requests):
        return [answer(pb_utils.InferenceRequest(model_name="other", {arguments}).exec())]
"""
    backend = load(tmp_path, text)
    (broke,) = backend.start(1, {"x": X}, PART)
    assert isinstance(broke, BatchBroke)
    assert message in broke.message


def kill(process: int) -> None:
    """Kill a process, and return when it has ended."""
    pidfd = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(TIMEOUT_MS)
    os.close(pidfd)


def test_batches_that_wait_fail_with_their_process_when_another_one_starts(tmp_path: Path) -> None:
    text = f"""
class TritonPythonModel:
    def execute(self, requests):
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        if x_of(requests[0])[0, 0]:
            call(requests[0]).exec()
        return [answer(x_of(request)) for request in requests]
"""
    backend = load(tmp_path, text)
    (made,) = backend.start(1, {"x": X}, PART)
    assert isinstance(made, CallMade)
    os.close(made.fd)
    kill(int((tmp_path / "pid").read_text()))
    broke, ran = backend.start(2, {"x": X * 0}, PART)
    assert broke == BatchBroke(1, "the process of the model was killed by SIGKILL", process_ended=True)
    assert isinstance(ran, BatchRan)
    assert ran.batch == 2


@pytest.mark.parametrize(
    "action",
    [
        'pb_utils.MetricFamily("c", "C.", pb_utils.MetricFamily.COUNTER).Metric({}).increment(np.float32(2))',
        'pb_utils.MetricFamily("h", "H.", 2).Metric({}, np.array([1, 2])).observe(np.mean(x))',
        'pb_utils.MetricFamily("g", "\\udcff", 1).Metric({"of": "\\udcff"}).set(np.int64(2))',
    ],
)
def test_metrics_take_what_numpy_has(tmp_path: Path, action: str) -> None:
    text = f"""
class TritonPythonModel:
    def execute(self, requests):
        x = x_of(requests[0])
        {action}
        return [answer(x)]
"""
    backend = load(tmp_path, text)
    (ran,) = backend.start(1, {"x": X}, PART)
    assert isinstance(ran, BatchRan)
    assert len(ran.metrics) == 1


def test_an_answer_that_is_too_long_for_a_message_fails_its_batch_alone(tmp_path: Path) -> None:
    text = """
class TritonPythonModel:
    def execute(self, requests):
        self.runs = getattr(self, "runs", 0) + 1
        if x_of(requests[0])[0, 0]:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("x" * 4000)) for _ in requests]
        return [answer(np.full((1, 1), self.runs, np.float32))]
"""
    backend = load(tmp_path, text)
    (broke,) = backend.start(1, {"x": np.ones((600, 1), np.float32)}, PART * 600)
    assert broke == BatchBroke(1, "the answer cannot be sent: [Errno 90] Message too long")
    (ran,) = backend.start(2, {"x": X * 0}, PART)
    assert isinstance(ran, BatchRan)
    assert ran.outputs["y"].item() == 2


def test_a_request_has_a_time_limit_and_a_trace_and_its_tensors_speak_dlpack(tmp_path: Path) -> None:
    text = """
class TritonPythonModel:
    def execute(self, requests):
        given = requests[0].inputs()[0]
        assert requests[0].trace().get_context() is None
        copied = pb_utils.Tensor("x", given.as_numpy().copy())
        return [answer(np.from_dlpack(copied) + np.float32(requests[0].timeout()))]
"""
    backend = load(tmp_path, text)
    (ran,) = backend.start(1, {"x": X}, (RequestPart(1, timeout_us=250_000),))
    assert isinstance(ran, BatchRan)
    assert ran.outputs["y"].item() == 250_001


def test_a_request_in_a_trace_gives_its_context_to_libraries_and_calls(tmp_path: Path) -> None:
    text = """
import json

class TritonPythonModel:
    def execute(self, requests):
        traces = [json.loads(request.trace().get_context()) for request in requests]
        assert traces == [{"traceparent": "00-1", "tracestate": "a=b"}, {"traceparent": "00-2"}]
        call = pb_utils.InferenceRequest(model_name="m", inputs=[], trace=requests[1].trace())
        assert (call._call().traceparent, call._call().tracestate) == ("00-2", "")
        return [answer(x_of(request)) for request in requests]
"""
    backend = load(tmp_path, text)
    parts = RequestPart(1, traceparent="00-1", tracestate="a=b"), RequestPart(1, traceparent="00-2")
    (ran,) = backend.start(1, {"x": np.zeros((2, 1), np.float32)}, parts)
    assert isinstance(ran, BatchRan)


def test_the_end_of_a_process_ends_its_sequences_and_all_batches_that_wait(tmp_path: Path) -> None:
    config = CONFIG | {"sequence_batching": {}}
    text = f"""
class TritonPythonModel:
    def execute(self, requests):
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        if x_of(requests[0])[0, 0]:
            call(requests[0]).exec()
        return [answer(x_of(request)) for request in requests]
"""
    (tmp_path / "model.py").write_text(HEAD + text)
    backend = python.load(str(tmp_path / "model.py"), 1, json.dumps(config))
    for batch in (1, 2):
        (made,) = backend.start(batch, {"x": X}, PART)
        assert isinstance(made, CallMade)
        os.close(made.fd)
    kill(int((tmp_path / "pid").read_text()))
    reason = "the process of the model was killed by SIGKILL"
    assert backend.start(3, {"x": X * 0}, PART) == [
        BatchBroke(batch, reason, process_ended=True) for batch in (1, 2, 3)
    ]
    (ran,) = backend.start(4, {"x": X * 0}, PART)
    assert isinstance(ran, BatchRan)
