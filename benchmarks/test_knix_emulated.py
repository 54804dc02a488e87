"""Sharing an accelerator as in KNIX (HiPS '21) by 1, 2 and 4 jobs, on any machine: the accelerator is emulated.

Its shares are models that sleep (backend `timed`): what a batch takes is given, by the share that its worker stands
for, and no core does it. All else is real: a server with its scheduler, a worker process for every share, and a client
over HTTP for every job, which sends a batch when it has the answer to the last one. Overhead is
(t_shared - t_bare) / t_bare, as there: bare is the same sleep, called in a loop.
"""

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.conftest import Report
from sluice.models.backends.timed import load
from sluice.models.profiles.simulated_gpu import latency_ms
from tests.support.gateway.server import gateway_server
from tests.support.models.timed_models import save_timed

SHARES = (1, 2, 4)
TABLE_2 = "0.67 %"
"""The smallest overhead in the paper, for five minutes of training."""

_BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]})


class Job(NamedTuple):
    """Successive batches; `batch_ms` gives the duration of one by the share in percent."""

    name: str
    batches: int
    rounds: int
    batch_ms: Callable[[int], float]


LONG = Job("long", 2, 1, lambda percent: 600 * 100 / percent)
"""As in Figure 3 of the paper: inversely proportional to the share."""
SHORT = Job("short", 20, 2, lambda percent: latency_ms("resnet50", f"mps-{percent}", 8))


@pytest.mark.parametrize("count", SHARES)
def test_jobs_on_shares_of_an_emulated_accelerator(count: int, tmp_path: Path, report: Report) -> None:
    repository = tmp_path / "models"
    for job in (LONG, SHORT):
        save_timed(repository, job.name, {1: job.batch_ms(100 // count)}, max_batch_size=1)
    # MIG partitions need no cores and no daemon; the emulation does not depend on enforcement.
    slices = [
        {"kind": "mig", "name": f"share{number}", "uuid": f"MIG-00000000-0000-0000-0000-{number:012d}", "profile": "1g"}
        for number in range(count)
    ]
    with gateway_server(repository, tmp_path, {"partitions": slices}) as server, ThreadPoolExecutor(count) as threads:
        for job in (LONG, SHORT):
            bare_s: list[float] = []
            shared_s: list[float] = []
            for _ in range(job.rounds):
                bare_s.append(bare(repository / job.name / "1" / "model.timed.json", job.batches))
                shared_s += threads.map(served, count * [server.http_port], count * [job])
            overhead = (mean(shared_s) - mean(bare_s)) / mean(bare_s)
            each_ms = 1000 * (mean(shared_s) - mean(bare_s)) / job.batches
            what = f"KNIX, emulated accelerator: {count} x {job.batches} {job.name} batches of"
            report(
                f"{what} {job.batch_ms(100 // count):.0f} ms, {100 // count} % each",
                f"{mean(bare_s):.3f} s bare, {mean(shared_s):.3f} s: {overhead:+.2%}, {each_ms:.1f} ms a batch",
                TABLE_2 if job is LONG else "",
            )


def bare(file: Path, batches: int) -> float:
    """Seconds of a job without Sluice."""
    backend, x = load(str(file), 1), np.ones((1, 1), np.float32)
    began = time.monotonic()
    for _ in range(batches):
        backend.run({"x": x})
    return time.monotonic() - began


def served(port: int, job: Job) -> float:
    """Seconds of a job through the server, on a connection that is already warm."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    infer(connection, SHORT)
    began = time.monotonic()
    for _ in range(job.batches):
        infer(connection, job)
    took_s = time.monotonic() - began
    connection.close()
    return took_s


def infer(connection: http.client.HTTPConnection, job: Job) -> None:
    connection.request("POST", f"/v2/models/{job.name}/infer", _BODY)
    answer = connection.getresponse()
    assert (answer.status, len(answer.read()) > 0) == (200, True)
