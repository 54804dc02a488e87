"""Workers under MPS are ended through the daemon, whatever they are ended for, as they may be in the middle of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.messages import LoadResult
from sluice.mps.partitions.partition import MpsPartition
from sluice.mps.supervisor import recovery, supervisor
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual
from tests.unit.mps.supervisor.test_hand_over import SLOW, A, B, Bench, C

HALF, MORE = MpsPartition("half", "GPU-0", 50), MpsPartition("half", "GPU-0", 60)
Happens = Callable[[Bench], Coroutine[Any, Any, object]]


async def never_ready(bench: Bench) -> None:
    bench.made[0].end("it crashed")
    await asyncio.sleep(121)


async def never_loaded(bench: Bench) -> None:
    bench.supervisor.load("half", C)
    await asyncio.sleep(121)


async def in_vain(bench: Bench) -> None:
    done, _ = bench.resize(MORE)
    bench.supervisor.cancel_replacement("half", "it was given up")
    await asyncio.wait([done])
    assert str(done.exception()) == "it was given up"


async def recycled(bench: Bench) -> None:
    bench.supervisor.recycle("half")


async def stopped(bench: Bench) -> None:
    bench.made[0].wedged = True
    await bench.supervisor.drain()


@pytest.mark.parametrize(
    ("happens", "number", "reason"),
    [
        (never_ready, 1, "not ready within 120 s"),
        (never_loaded, 0, "it did not load a model within 120 s"),
        (in_vain, 1, "it was given up"),
        (recycled, 0, "it is recycled to free its memory"),
        (stopped, 0, "it did not exit in time"),
    ],
)
def test_the_daemon_destroys_its_contexts(
    monkeypatch: pytest.MonkeyPatch, happens: Happens, number: int, reason: str
) -> None:
    ended: list[tuple[object, str]] = []

    async def end_client(worker: WorkerProcess, control: MpsControl, why: str) -> None:
        ended.append((worker, why))

    async def main(loop: VirtualLoop) -> None:
        monkeypatch.setattr("sluice.mps.partitions.cpu.available_cores", lambda: (0, 1, 2))
        bench = Bench()
        control = cast(MpsControl, object())
        bench.supervisor = Supervisor([WorkerSpec(HALF, (A, B), 4096)], bench, controls={"GPU-0": control})
        monkeypatch.setattr(supervisor, "WorkerProcess", bench.make)
        monkeypatch.setattr(recovery, "end_client", end_client)
        bench.supervisor.recovery.start = lambda: None  # type: ignore[method-assign]  # there is no device to watch
        bench.supervisor.start()
        bench.made[0].come_up(LoadResult("a", SLOW), LoadResult("b", SLOW))
        await happens(bench)
        await asyncio.sleep(0)
        assert ended == [(bench.made[number], reason)]
        assert [each.killed for each in bench.made] == [[] for _ in bench.made]
        for worker in bench.made:
            worker.wedged = False
        await bench.supervisor.drain()

    run_virtual(main)
