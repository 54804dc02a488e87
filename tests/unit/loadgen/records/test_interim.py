import math
from functools import partial

import numpy as np
import pytest

from sluice.loadgen.records.interim import EarlyVerdict, InterimTest, JoinedLooks, LookCounts, PartialLooks
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000
OBJECTIVE_NS = 10 * MS


def record_of(queries: int, slo_ns: int = OBJECTIVE_NS) -> Record:
    """Queries a millisecond apart, none of which is answered yet."""
    return Record.of(Schedule(np.arange(queries, dtype=np.int64) * MS, np.zeros(queries, np.int64)), slo_ns)


def answer(record: Record, latency_ns: int, queries: slice = slice(None)) -> None:
    record.status[queries] = Status.OK
    record.done_ns[queries] = record.due_ns[queries] + latency_ns


def planned(record: Record, decide_from_s: float = 0.0, warmup_s: float = 0.0) -> InterimTest:
    slo_ns = int(record.slo_ns[0])
    return InterimTest(record.due_ns, slo_ns, percentile=99, warmup_s=warmup_s, decide_from_s=decide_from_s)


def run(record: Record, interim: InterimTest) -> float:
    """Take all looks at a record until one decides; returns when that was."""
    now_ns = 0.0
    while interim.next_look_ns < math.inf:
        now_ns = interim.next_look_ns
        interim.look(record, int(now_ns))
    return now_ns


def test_a_run_without_a_miss_ends_with_the_queries_that_a_confirmation_needs() -> None:
    record = record_of(10_000)
    answer(record, OBJECTIVE_NS)
    interim = planned(record)
    # Query 458 is due after 458 ms, and its fate is known 10 ms later; timers may be 2 ms early.
    assert run(record, interim) == 470 * MS
    assert interim.decided == (EarlyVerdict.CONFIRMED, 461)


def test_queries_due_within_the_last_objective_do_not_count() -> None:
    record = record_of(10_000)
    answer(record, MS, slice(0, 461))
    interim = planned(record)
    run(record, interim)
    assert interim.decided == (EarlyVerdict.CONFIRMED, 461)


def test_a_run_with_some_misses_goes_on_until_it_has_queries_enough_for_them() -> None:
    record = record_of(10_000)
    answer(record, MS)
    record.status[5:8] = Status.ERROR
    interim = planned(record)
    run(record, interim)
    # Three misses take 1001 queries; the looks are a quarter apart.
    assert interim.decided is not None
    decision, queries = interim.decided
    assert decision is EarlyVerdict.CONFIRMED
    assert 1001 <= queries <= 1.25 * 1001


def test_more_misses_than_the_whole_run_may_have_end_it() -> None:
    record = record_of(2010)
    answer(record, OBJECTIVE_NS + 1)
    interim = planned(record)
    run(record, interim)
    assert interim.decided is not None
    decision, queries = interim.decided
    assert decision is EarlyVerdict.EXCLUDED
    # The whole run may have 10 misses.
    assert 11 <= queries <= 48


def test_queries_without_an_answer_have_missed_once_the_objective_has_passed() -> None:
    record = record_of(2010)
    interim = planned(record)
    run(record, interim)
    assert interim.decided is not None
    assert interim.decided[0] is EarlyVerdict.EXCLUDED


def test_a_run_may_be_confirmed_from_a_given_time_on_only() -> None:
    record = record_of(10_000)
    answer(record, MS)
    interim = planned(record, decide_from_s=3.0)
    assert 3012 * MS <= run(record, interim) < 3800 * MS
    late = planned(record, decide_from_s=math.inf)
    run(record, late)
    assert late.decided is None


def test_misses_end_a_run_before_the_time_of_confirmations() -> None:
    record = record_of(10_000)
    interim = planned(record, decide_from_s=math.inf)
    assert run(record, interim) < 1000 * MS
    assert interim.decided is not None


def test_the_warm_up_does_not_count() -> None:
    record = record_of(10_000)
    answer(record, MS)
    record.status[:1000] = Status.ERROR
    interim = planned(record, warmup_s=1.0)
    run(record, interim)
    assert interim.decided == (EarlyVerdict.CONFIRMED, 1461)


def test_without_an_objective_an_open_query_is_neither_good_nor_a_miss() -> None:
    record = record_of(1000, slo_ns=-1)
    interim = planned(record)
    run(record, interim)
    assert interim.decided is None
    answer(record, 0)
    interim = planned(record)
    run(record, interim)
    assert interim.decided is not None
    assert interim.decided[0] is EarlyVerdict.CONFIRMED


def test_cancelled_queries_do_not_count() -> None:
    record = record_of(2000)
    answer(record, MS)
    record.status[::2] = Status.CANCELLED
    interim = planned(record)
    run(record, interim)
    assert interim.decided is not None
    decision, queries = interim.decided
    assert decision is EarlyVerdict.CONFIRMED
    assert queries >= 2 * 459


@pytest.mark.parametrize("queries", [1, 100, 458])
def test_a_run_too_short_for_any_confirmation_is_never_confirmed(queries: int) -> None:
    record = record_of(queries)
    answer(record, MS)
    interim = planned(record)
    run(record, interim)
    assert interim.decided is None


def test_looks_are_few() -> None:
    record = record_of(1_000_000)
    answer(record, MS)
    interim = planned(record, decide_from_s=math.inf)
    looks = 0
    while interim.next_look_ns < math.inf:
        interim.look(record, int(interim.next_look_ns))
        looks += 1
    assert looks < 60


def part_of(record: Record, index: int, parts: int) -> Record:
    """Every query whose number leaves `index` when it is divided by `parts`."""
    own = slice(index, None, parts)
    part = Record.of(Schedule(record.due_ns[own], record.sample[own]), int(record.slo_ns[0]))
    part.status[:], part.done_ns[:] = record.status[own], record.done_ns[own]
    return part


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(
    ("latency_ns", "errors"), [(MS, 0), (MS, 3), (MS, 60), (2 * OBJECTIVE_NS, 0), (OBJECTIVE_NS + 1, 9_000)]
)
def test_parts_of_a_run_decide_as_the_whole(parts: int, latency_ns: int, errors: int) -> None:
    record = record_of(10_000)
    answer(record, latency_ns)
    record.status[100 : 100 + errors] = Status.ERROR
    whole, joined = planned(record, warmup_s=0.05), planned(record, warmup_s=0.05)
    ended_ns = run(record, whole)
    looks = JoinedLooks(joined, parts)
    decided: list[int] = []

    def add(index: int, at_ns: int, counts: LookCounts) -> None:
        if looks.add(index, at_ns, counts):
            decided.append(at_ns)

    tests = [PartialLooks(planned(record, warmup_s=0.05), partial(add, index)) for index in range(parts)]
    for index, test in enumerate(tests):  # one after the other: a look waits for the last part
        while test.next_look_ns < math.inf:
            test.look(part_of(record, index, parts), int(test.next_look_ns))
    assert decided == [ended_ns]
    assert joined.decided == whole.decided


def test_a_part_that_looks_late_counts_as_of_the_time_of_the_look() -> None:
    record = record_of(1_000)
    answer(record, OBJECTIVE_NS)
    reported: list[tuple[int, LookCounts]] = []
    looks = PartialLooks(planned(record), lambda at_ns, counts: reported.append((at_ns, counts)))
    first_ns = int(looks.next_look_ns)
    looks.look(record, 900 * MS)
    assert reported[0] == (first_ns, planned(record).count(record, first_ns))
    assert looks.next_look_ns > 900 * MS
    assert len(reported) > 5
