import pytest

from sluice.loadgen.papers.engines.packing_replay import FinishedJob, PackingJob, SchedulerTiming, replay
from sluice.models.units import NS_PER_S
from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.first_fit_decreasing import FirstFitDecreasing
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policy import PackingPolicy
from sluice.mps.packing.tenant import MemoryPhase, Tenant

AT_ONCE = SchedulerTiming()
EVERY_SECOND = SchedulerTiming(look_ns=NS_PER_S)


def seconds(ended: FinishedJob) -> tuple[str, float, int, float]:
    """Name, wait, restarts, end."""
    return ended.name, ended.pending_ns / NS_PER_S, ended.restarts, ended.end_ns / NS_PER_S


def life(*phases: tuple[int, int]) -> tuple[MemoryPhase, ...]:
    return tuple(MemoryPhase(mib, length * NS_PER_S) for mib, length in phases)


def job(
    name: str, arrival_s: int, *phases: tuple[int, int], request_mib: int, less: tuple[int, ...] = ()
) -> PackingJob:
    return PackingJob(Tenant(name, request_mib, life(*phases)), arrival_s * NS_PER_S, life(*phases), less)


def play(
    policy: PackingPolicy, *jobs: PackingJob, pace: SchedulerTiming = AT_ONCE
) -> list[tuple[str, float, int, float]]:
    return [seconds(ended) for ended in replay(policy, jobs, {"gpu": 1000}, pace).jobs]


def test_a_job_that_does_not_fit_waits_for_the_first_that_ends() -> None:
    jobs = [job(name, at, (100, 60), request_mib=400) for name, at in (("a", 0), ("b", 10), ("c", 20), ("d", 30))]
    assert play(BestFit(), *jobs) == [("a", 0, 0, 60), ("b", 0, 0, 70), ("c", 40, 0, 120), ("d", 40, 0, 130)]


def test_a_job_that_fits_overtakes_one_that_does_not() -> None:
    jobs = [
        job("a", 0, (100, 60), request_mib=600),
        job("large", 10, (100, 60), request_mib=900),
        job("small", 20, (100, 60), request_mib=400),
    ]
    assert play(FirstFitDecreasing(), *jobs) == [("a", 0, 0, 60), ("small", 0, 0, 80), ("large", 70, 0, 140)]


def test_a_job_that_runs_out_of_memory_restarts_later() -> None:
    # Both ask for less than they take: b fails after 6 s and, 10 s later, after 21 s; 20 s later a is gone.
    jobs = [job(name, at, (0, 5), (600, 30), request_mib=500) for name, at in (("a", 0), ("b", 1))]
    assert play(BestFit(), *jobs) == [("a", 0, 0, 35), ("b", 0, 2, 76)]


def test_a_job_that_accepts_less_memory_goes_on() -> None:
    jobs = [
        job(name, at, (0, 5), (600, 30), request_mib=500, less=(500, 400, 300)) for name, at in (("a", 0), ("b", 1))
    ]
    assert play(BestFit(), *jobs) == [("a", 0, 0, 35), ("b", 0, 0, 36)]


def test_a_job_starts_before_its_peak_fits_and_waits_at_the_gate_when_another_is_late() -> None:
    measured = life((100, 10), (700, 50))
    late = PackingJob(Tenant("late", 1, measured), 0, life((100, 10), (700, 53)), ())
    after = PackingJob(Tenant("after", 1, measured), 0, measured, ())
    # "late" is to end after 60 s, so that "after" starts after 50 s, and has 3 s to wait for 700 MiB.
    assert play(PeakSafe(headroom_mib=0), late, after, pace=EVERY_SECOND) == [("late", 0, 0, 63), ("after", 53, 0, 113)]


def test_a_scheduler_pauses_after_each_placement() -> None:
    jobs = [job(name, 0, (100, 60), request_mib=100) for name in "abc"]
    assert play(BestFit(), *jobs, pace=SchedulerTiming(pause_ns=5 * NS_PER_S)) == [
        ("a", 0, 0, 60),
        ("b", 5, 0, 65),
        ("c", 10, 0, 70),
    ]


def test_a_job_waits_when_its_growth_would_block_every_job() -> None:
    # "late" has 100 MiB where 600 and then 200 were measured, so that "after" has a place; if it took its 700 now,
    # there would be neither the 600 for "late" nor its own 900. "third" has no place meanwhile.
    late = PackingJob(
        Tenant("late", 1, life((100, 1), (600, 1), (200, 100))), 0, life((100, 1100), (600, 1), (200, 100))
    )
    after = job("after", 10, (700, 1000), (900, 10), request_mib=1)
    third = job("third", 15, (700, 1000), (900, 10), request_mib=1)
    assert play(PeakSafe(headroom_mib=50), late, after, third, pace=EVERY_SECOND) == [
        ("late", 0, 0, 1201),
        ("after", 1191, 0, 2211),
        ("third", 2196, 0, 3221),
    ]


def test_a_job_larger_than_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a: needs 1001 MiB; gpu has 1000$"):
        play(BestFit(), job("a", 0, (1001, 1), request_mib=1))


def test_a_job_that_would_wait_at_the_gate_for_ever_is_refused() -> None:
    # "a" takes more than was measured, and that is more than the head-room leaves.
    longer = PackingJob(Tenant("a", 1, life((100, 10))), 0, life((100, 10), (951, 10)))
    with pytest.raises(ValueError, match=r"^b, a: waiting for memory that never becomes free$"):
        play(PeakSafe(headroom_mib=50), longer, job("b", 1, (900, 1), request_mib=1), pace=EVERY_SECOND)


def test_a_job_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^b: waiting for memory that never becomes free$"):
        play(BestFit(), job("a", 0, (1, 1), request_mib=1), job("b", 0, (1, 1), request_mib=1001), pace=EVERY_SECOND)
