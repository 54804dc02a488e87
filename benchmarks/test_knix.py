"""Sharing a machine as in KNIX (HiPS '21): execution time by share, overhead of sharing, and isolation of neighbours.

There a GPU is split for training jobs, here a machine's cores for inference; overhead is
(t_shared - t_bare) / t_bare, as there.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.conftest import Report
from sluice.models.units import NS_PER_MS, NS_PER_S
from sluice.mps.ipc.messages import BatchFinished, ModelFile, RunBatch
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.gateway.workers import Gateway, serving
from tests.support.models.onnx_models import save_mlp

SHARES = (1, 2, 4)
REPETITIONS = 10
BATCHES = 60
ROWS = 256
OVERHEAD = "0.67 %"
"""The smallest overhead in the paper."""
NEIGHBOURS_S = 4.0
EVERY_S = 0.02

CORES = available_cores()

_BARE = """
import os, sys, time
import numpy as np
cores = {int(core) for core in sys.argv[2].split(",")}
os.sched_setaffinity(0, cores)
from sluice.models.backends.onnxruntime import load
backend = load(sys.argv[1], len(cores))
x = np.ones((int(sys.argv[3]), 64), np.float32)
backend.run({"x": x})
for line in sys.stdin:
    began = time.monotonic_ns()
    for _ in range(int(line)):
        backend.run({"x": x})
    print(time.monotonic_ns() - began, flush=True)
"""


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    path = save_mlp(tmp_path / "wide.onnx", (64, 1024, 1024, 10))
    return ModelFile("m:1", str(path), "onnxruntime", (ROWS,), batchable=True)


def spec(model: ModelFile, number: int, cores: Sequence[int]) -> WorkerSpec:
    return WorkerSpec(CpuPartition(f"cpu{number}", tuple(cores)), (model,), 1 << 20)


def split(count: int) -> list[tuple[int, ...]]:
    size = len(CORES) // count
    return [CORES[index * size : (index + 1) * size] for index in range(count)]


def rows(count: int) -> npt.NDArray[np.float32]:
    return np.ones((count, 64), np.float32)


class Jobs:
    """Runs one job on each partition at the same time; a worker always has its next batch."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._inputs = (gateway.place(rows(ROWS)),)
        self._slots: dict[str, list[int]] = {name: [] for name in gateway.workers}

    async def run(self, batches: int) -> list[float]:
        """Run the jobs; returns the seconds of each."""
        names = list(self._gateway.workers)
        of: dict[int, str] = {}
        left = dict.fromkeys(names, batches)
        began_ns: dict[str, int] = {}
        ended_ns: dict[str, int] = {}

        def send(name: str) -> None:
            if left[name]:
                left[name] -= 1
                batch = next(self._gateway.numbers)
                of[batch] = name
                self._gateway.workers[name].send(RunBatch(batch, "m:1", self._inputs, tuple(self._slots[name])))
                self._slots[name].clear()

        for name in 2 * names:
            send(name)
        while of:
            done = await self._gateway.next()
            assert isinstance(done, BatchFinished), done
            name = of.pop(done.batch)
            began_ns.setdefault(name, done.started_ns)
            ended_ns[name] = done.ended_ns
            self._slots[name].append(done.slot)
            send(name)
        return [(ended_ns[name] - began_ns[name]) / NS_PER_S for name in names]


def test_execution_time_is_in_proportion_to_the_share(model: ModelFile, report: Report) -> None:
    async def measure(count: int) -> float:
        specs = [spec(model, number, cores) for number, cores in enumerate(split(count))]
        async with serving(*specs) as gateway:
            jobs = Jobs(gateway)
            await jobs.run(5)
            return mean([mean(await jobs.run(BATCHES)) for _ in range(REPETITIONS)])

    whole_s = 0.0
    for count in [each for each in SHARES if each <= len(CORES)]:
        took_s = asyncio.run(measure(count))
        whole_s = whole_s or took_s
        figure = f"KNIX: a job in each of {count} shares of {len(CORES) // count} of {len(CORES)} cores"
        report(figure, f"{took_s:.3f} s ({took_s / whole_s:.2f}x)", f"{count}x")


def test_sharing_has_little_overhead(model: ModelFile, report: Report) -> None:
    """The same batches in a worker with all cores and in a process without Sluice, in turns."""

    async def measure(bare: "subprocess.Popen[str]") -> tuple[float, float]:
        bare_s, shared_s = [], []
        async with serving(spec(model, 0, CORES)) as gateway:
            jobs = Jobs(gateway)
            await jobs.run(5)
            for _ in range(REPETITIONS):
                bare_s.append(await asyncio.to_thread(bare_run, bare))
                shared_s += await jobs.run(BATCHES)
        return mean(bare_s), mean(shared_s)

    command = [sys.executable, "-c", _BARE, model.path, ",".join(map(str, CORES)), str(ROWS)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as bare:
        bare_s, shared_s = asyncio.run(measure(bare))
        assert bare.stdin is not None
        bare.stdin.close()
    report("KNIX: a job without Sluice, on all cores", f"{bare_s:.3f} s", "")
    report("KNIX: the same in a partition of all cores", f"{shared_s:.3f} s", "")
    report("KNIX: overhead", f"{(shared_s - bare_s) / bare_s:+.2%}", OVERHEAD)


def bare_run(bare: "subprocess.Popen[str]") -> float:
    assert bare.stdin is not None
    assert bare.stdout is not None
    bare.stdin.write(f"{BATCHES}\n")
    bare.stdin.flush()
    return int(bare.stdout.readline()) / NS_PER_S


@pytest.mark.skipif(len(CORES) < 2, reason="neighbours need a core each")
def test_a_noisy_neighbour_does_no_harm_in_a_core_set_of_its_own(model: ModelFile, report: Report) -> None:
    """A job with a batch every 20 ms beside an endless one: in separate core sets, and both on all cores."""

    async def measure(mine: Sequence[int], others: Sequence[int]) -> tuple[float, float]:
        async with serving(spec(model, 0, mine)) as quiet:
            if not others:
                return await paced(quiet)
            async with serving(spec(model, 1, others)) as noisy:
                noise = asyncio.create_task(make_noise(noisy))
                try:
                    return await paced(quiet)
                finally:
                    noise.cancel()

    mine, others = split(2)
    for what, sets in (
        ("alone in a half of the cores", (mine, ())),
        ("beside a noisy neighbour in the other half", (mine, others)),
        ("beside a noisy neighbour in the same cores, all of them", (CORES, CORES)),
    ):
        p50, p99 = asyncio.run(measure(*sets))
        report(f"KNIX: a job {what}", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms", "")


async def make_noise(gateway: Gateway) -> None:
    jobs = Jobs(gateway)
    while True:
        await jobs.run(100)


async def paced(gateway: Gateway) -> tuple[float, float]:
    """Percentiles of the latency of a batch of 16 rows from its due time, in milliseconds."""
    inputs = (gateway.place(rows(16)),)
    (worker,) = gateway.workers.values()
    took_ms: list[float] = []
    release: tuple[int, ...] = ()
    due_s = time.monotonic() + 0.5
    for _ in range(round(NEIGHBOURS_S / EVERY_S)):
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        sent_ns = time.monotonic_ns()
        worker.send(RunBatch(next(gateway.numbers), "m:1", inputs, release))
        done = await gateway.next()
        assert isinstance(done, BatchFinished), done
        release = (done.slot,)
        took_ms.append((done.ended_ns - sent_ns) / NS_PER_MS)
        due_s += EVERY_S
    p50, p99 = np.percentile(took_ms, [50, 99])
    return float(p50), float(p99)
