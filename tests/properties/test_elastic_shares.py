"""Every partition of a shared device gets its share, to within one batch of each other partition."""

import io
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.loadgen.papers.engines.shared_device import BurstJob, ShareCap, run_jobs, scheduler_spec

MS = 1_000_000
WEIGHTS = st.lists(st.integers(1, 20), min_size=2, max_size=4)
PAUSES_S = st.sampled_from([0.0, 0.001, 0.013, 0.05, 0.2])


@st.composite
def mixes(draw: st.DrawFn) -> tuple[BurstJob, ...]:
    """Bursty jobs whose shares add up to at most the device."""
    weights = draw(WEIGHTS)
    whole = sum(weights) + draw(st.sampled_from([0, 0, 10]))
    return tuple(
        BurstJob(f"job{n}", weight / whole, draw(st.integers(1, 12)) * 0.02, draw(st.integers(1, 4)), draw(PAUSES_S))
        for n, weight in enumerate(weights)
    )


class Bursts:
    """Arrival and completion of each burst, in nanoseconds."""

    def __init__(self, jobs: Sequence[BurstJob]) -> None:
        self.ended: list[tuple[str, int]] = []
        self._open = {job.name: 0 for job in jobs}
        self._began_ns: dict[str, int] = {}
        self._owner: dict[int, str] = {}

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived):
            self._owner[event.request] = event.pipeline
            if not self._open[event.pipeline]:
                self._began_ns[event.pipeline] = now_ns
            self._open[event.pipeline] += 1
        for decision in decisions:
            if isinstance(decision, CompleteRequest):
                name = self._owner[decision.request]
                self._open[name] -= 1
                if not self._open[name]:
                    self.ended.append((name, now_ns - self._began_ns[name]))


@given(mixes(), st.sampled_from([5, 10, 20]))
@settings(max_examples=40)
def test_each_gets_its_share_to_within_a_batch_of_each_of_the_others(jobs: tuple[BurstJob, ...], batch_ms: int) -> None:
    bursts = Bursts(jobs)
    run_jobs(ShareCap.ELASTIC, jobs, batch_ms / 1e3, bursts.observe)
    by_name = {job.name: job for job in jobs}
    assert len(bursts.ended) == sum(job.bursts for job in jobs)
    for name, took_ns in bursts.ended:
        job = by_name[name]
        work_ns = round(job.work_s * 1e3 / batch_ms) * batch_ms * MS
        others_ns = (len(jobs) - 1) * batch_ms * MS
        # While it had work, the job got its share, less the batches that others had already started.
        assert job.share * took_ns <= work_ns + others_ns + 1_000


@given(mixes())
@settings(max_examples=5)
def test_a_journal_replays_to_the_same_decisions(jobs: tuple[BurstJob, ...]) -> None:
    journal = io.BytesIO()
    run_jobs(ShareCap.ELASTIC, jobs, 0.01, JournalWriter(journal.write, scheduler_spec(ShareCap.ELASTIC, jobs)).record)
    assert replay(journal.getvalue().splitlines()) is None
