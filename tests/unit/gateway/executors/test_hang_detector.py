"""A batch that does not end in its time is overdue; the time while the loop stood still does not count."""

import math
from collections.abc import Callable, Mapping

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.gateway.executors.hang_detector import HangDetector
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import ONE, S, dispatch
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

MINUTE_NS = 60 * S
Script = Callable[["Watched"], None]
"""The actions of a test on the detector once it watches."""


class Watched:
    """A detector with a limit of 10 s over batch 1 of the model `m:1`, and the seconds at which it called out."""

    def __init__(self, loop: VirtualLoop, tables: Mapping[str, LatencyTable]) -> None:
        self.loop = loop
        self.batches: dict[int, DispatchBatch] = {1: dispatch(1, [1])}
        self.loading: set[str] = set()
        self.overdue: list[tuple[float, str]] = []
        self.ends_at_s = math.inf  # a message that stops the detector arrives, but the loop has not read it
        self.detector = HangDetector(self.batches, tables, self.loading, 10.0, self._take_in, self._overdue)

    def _take_in(self) -> None:
        if self.loop.time() >= self.ends_at_s:
            self.detector.stop()

    def _overdue(self, reason: str) -> None:
        self.overdue.append((round(self.loop.time(), 3), reason))

    def at(self, second: float, action: Callable[[], object]) -> None:
        self.loop.at(round(second * S), action)


def watch(script: Script, table: LatencyTable = ONE) -> list[tuple[float, str]]:
    """The calls within a minute in which batch 1 runs from 0 s on."""

    async def main(loop: VirtualLoop) -> list[tuple[float, str]]:
        watched = Watched(loop, {"m:1": table})
        watched.detector.restart()
        script(watched)
        end = loop.create_future()
        loop.at(MINUTE_NS, end.set_result, None)
        await end
        return watched.overdue

    return run_virtual(main)


def test_a_batch_is_overdue_at_the_limit() -> None:
    assert watch(lambda watched: None) == [(10.0, "batch 1 did not end within 10 s")]


def test_a_slow_model_has_twenty_times_its_latency() -> None:
    assert watch(lambda watched: None, LatencyTable.from_ms({1: 2_000})) == [(40.0, "batch 1 did not end within 40 s")]


def test_the_next_batch_has_its_own_time() -> None:
    def ends(watched: Watched) -> None:
        del watched.batches[1]
        watched.batches[2] = dispatch(2, [2])
        watched.detector.restart()

    calls = watch(lambda watched: watched.at(7.5, lambda: ends(watched)))
    assert calls == [(17.5, "batch 2 did not end within 10 s")]


def test_without_a_batch_nothing_is_overdue() -> None:
    assert watch(lambda watched: watched.at(5, watched.batches.clear)) == []


def test_a_detector_that_is_stopped_calls_nothing() -> None:
    assert watch(lambda watched: watched.at(5, watched.detector.stop)) == []


def test_while_a_model_loads_no_batch_is_overdue() -> None:
    def script(watched: Watched) -> None:
        watched.loading.add("n:1")
        watched.at(30.5, watched.loading.clear)

    assert watch(script) == [(31.0, "batch 1 did not end within 10 s")]


def test_messages_that_arrived_before_a_check_are_handled_first() -> None:
    def script(watched: Watched) -> None:
        watched.ends_at_s = 10.0

    assert watch(script) == []


def test_the_time_while_the_loop_stood_still_does_not_count() -> None:
    def stand_still(watched: Watched) -> None:
        watched.loop.now_ns += 20 * S

    calls = watch(lambda watched: watched.at(4.5, lambda: stand_still(watched)))
    # The check at 5 s came at 24.5 s.
    assert calls == [(29.5, "batch 1 did not end within 10 s")]
