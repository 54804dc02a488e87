"""Decoupled models that call others: their batches, their threads and their clients do not wait for each other."""

import json
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sluice.models.backends import python
from sluice.models.backends.calling import BatchBroke, BatchRan, CallMade, Progress, ResponseMade
from sluice.models.backends.requests import CallResult, RequestPart

CONFIG: dict[str, Any] = {
    "name": "m",
    "backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [1]}],
    "model_transaction_policy": {"decoupled": True},
}
HEAD = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def call(x):
    given = pb_utils.Tensor("x", x)
    return pb_utils.InferenceRequest(model_name="other", requested_output_names=["y"], inputs=[given]).exec()

def send(sender, x, flags=0):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]), flags)

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
"""
TIMEOUT_MS = 60_000


class Driver:
    """Takes what comes from a backend's batches."""

    def __init__(self, directory: Path, text: str) -> None:
        path = directory / "model.py"
        path.write_text(HEAD + text)
        self.backend = python.load(str(path), 1, json.dumps(CONFIG))
        self.calls: list[CallMade] = []
        self.responses: list[ResponseMade] = []
        self.ended: list[BatchRan | BatchBroke] = []

    def begin(self, batch: int) -> None:
        self._take(self.backend.start(batch, {"x": np.array([batch], np.int32)}, (RequestPart(1),)))

    def answer(self) -> None:
        """Answer the first call."""
        self.backend.answer(self.calls.pop(0).call, CallResult(), ())

    def wait(self, batch: int, kind: type[Progress]) -> None:
        """Return once something of that kind has come for a batch."""
        ready = select.poll()
        for descriptor in self.backend.filenos():
            ready.register(descriptor, select.POLLIN)
        while not any(isinstance(each, kind) and each.batch == batch for each in self._all()):
            assert ready.poll(TIMEOUT_MS), "the model says nothing"
            self._take(self.backend.resume())

    def _all(self) -> Sequence[Progress]:
        return [*self.calls, *self.responses, *self.ended]

    def _take(self, progress: Sequence[Progress]) -> None:
        for each in progress:
            if isinstance(each, CallMade):
                os.close(each.fd)
                self.calls.append(each)
            elif isinstance(each, ResponseMade):
                self.responses.append(each)
            else:
                assert isinstance(each, BatchRan | BatchBroke)
                self.ended.append(each)


def test_a_batch_runs_while_the_client_of_another_one_does_not_read(tmp_path: Path) -> None:
    driver = Driver(
        tmp_path,
        """
    def answer(self, sender, x):
        call(x)
        send(sender, x, FINAL)
""",
    )
    driver.begin(1)
    driver.wait(1, CallMade)
    driver.answer()
    driver.wait(1, ResponseMade)
    driver.begin(2)
    driver.wait(2, CallMade)
    driver.answer()
    driver.wait(2, ResponseMade)
    for batch in (1, 2):
        driver.backend.taken(batch)
        driver.wait(batch, BatchRan)


def test_calls_of_a_thread_are_those_of_the_batch_that_started_it(tmp_path: Path) -> None:
    driver = Driver(
        tmp_path,
        """
    def initialize(self, args):
        self.pool = ThreadPoolExecutor(2)

    def answer(self, sender, x):
        if x[0] == 1:
            threading.Thread(target=self.go_on, args=(sender, x)).start()
        else:
            self.pool.submit(self.go_on, sender, x)

    def go_on(self, sender, x):
        for _ in range(3):
            call(x)
        send(sender, x, FINAL)
""",
    )
    for batch in (1, 2, 3):
        driver.begin(batch)
        driver.wait(batch, CallMade)
    # Batch 1 goes on calling while batch 3 was the last one to begin.
    made: list[int] = []
    for batch in (1, 2, 3):
        for _ in range(3):
            driver.wait(batch, CallMade)
            driver.calls.sort(key=lambda each: each.batch != batch)
            made.append(driver.calls[0].batch)
            driver.answer()
        driver.wait(batch, ResponseMade)
        driver.backend.taken(batch)
        driver.wait(batch, BatchRan)
    assert made == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [each.outputs["y"].tolist() for each in driver.responses] == [[1], [2], [3]]
