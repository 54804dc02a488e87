"""Questions to models whether they are ready."""

import asyncio

from sluice.gateway.executors.worker.readiness import TIME_LIMIT_S, Readiness
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual


class Workers:
    def __init__(self, *partitions: str) -> None:
        self.partitions = frozenset(partitions)
        self.numbers: list[int] = []

    def send(self, number: int, model: str) -> frozenset[str]:
        self.numbers.append(number)
        return self.partitions


def test_all_partitions_have_to_say_yes() -> None:
    async def main(loop: VirtualLoop) -> None:
        readiness, workers = Readiness(), Workers("a", "b")
        first, second = (asyncio.ensure_future(readiness.ask("m:1", workers.send)) for _ in range(2))
        await asyncio.sleep(0)
        assert workers.numbers == [1]
        readiness.reported("a", 1, is_ready=True)
        await asyncio.sleep(0)
        assert not first.done()
        readiness.reported("b", 1, is_ready=True)
        assert (await first, await second) == (True, True)
        third = asyncio.ensure_future(readiness.ask("m:1", workers.send))
        await asyncio.sleep(0)
        readiness.reported("b", 2, is_ready=False)
        readiness.reported("a", 2, is_ready=True)
        readiness.reported("a", 9, is_ready=True)
        assert not await third

    run_virtual(main)


def test_a_model_that_does_not_answer_is_not_ready() -> None:
    async def main(loop: VirtualLoop) -> None:
        begun = loop.time()
        assert not await Readiness().ask("m:1", Workers("a").send)
        assert loop.time() - begun == TIME_LIMIT_S

    run_virtual(main)


def test_a_model_that_no_worker_holds_says_nothing_against_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        assert await Readiness().ask("m:1", Workers().send)

    run_virtual(main)
