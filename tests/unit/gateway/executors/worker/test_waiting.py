"""Batches that wait for other models: when their worker is given up."""

import asyncio

from sluice.batcher.interface.decisions import DispatchBatch, ReleaseReason
from sluice.gateway.executors.worker.waiting import ModelProgress, WaitingBatch
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual


class Bench:
    """Batches of one worker, which have 10 s to go on."""

    def __init__(self) -> None:
        self.overdue: list[str] = []
        self.progress: dict[str, ModelProgress] = {}

    def waiting(self, batch: int, model: str = "m:1") -> WaitingBatch:
        dispatched = DispatchBatch(batch, "cpu0", model, 1, (), ReleaseReason.FULL, 0)
        return WaitingBatch(dispatched, 10, self.overdue.append, self.progress)


def test_a_batch_that_waits_for_calls_is_never_overdue() -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        waiting = bench.waiting(1)
        waiting.call_made()
        await asyncio.sleep(100)
        waiting.call_answered()
        await asyncio.sleep(9)
        assert bench.overdue == []
        await asyncio.sleep(2)
        assert bench.overdue == ["batch 1 did not go on within 10 s"]

    run_virtual(main)


def test_batches_that_wait_for_their_turn_are_not_overdue_while_others_of_their_model_end() -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        batches = [bench.waiting(number) for number in range(6)]
        for each in batches[:-1]:
            await asyncio.sleep(8)
            each.ended()
        await asyncio.sleep(8)
        assert bench.overdue == []
        await asyncio.sleep(3)
        assert bench.overdue == ["batch 5 did not go on within 10 s"]

    run_virtual(main)


def test_batches_of_another_model_are_no_progress() -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        bench.waiting(1)
        other = bench.waiting(2, "other:1")
        await asyncio.sleep(8)
        other.ended()
        await asyncio.sleep(3)
        assert bench.overdue == ["batch 1 did not go on within 10 s"]

    run_virtual(main)


def test_the_time_for_which_a_client_does_not_read_does_not_count() -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        held, other = bench.waiting(1), bench.waiting(2)
        held.responded(is_held=True)
        await asyncio.sleep(100)
        held.responded(is_held=False)
        await asyncio.sleep(9)
        assert bench.overdue == []
        other.responded(is_held=False)
        await asyncio.sleep(9)
        assert bench.overdue == []
        await asyncio.sleep(2)
        assert sorted(bench.overdue) == [f"batch {number} did not go on within 10 s" for number in (1, 2)]

    run_virtual(main)


def test_a_held_batch_that_ends_holds_nothing_up() -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        held = bench.waiting(1)
        bench.waiting(2)
        held.responded(is_held=True)
        held.ended()
        await asyncio.sleep(11)
        assert bench.overdue == ["batch 2 did not go on within 10 s"]

    run_virtual(main)
