from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.batcher.estimates.latency import MAX_PAUSE_NS, USUAL_SKEW, LatencyEstimate
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import Entry
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.records import request

ORDERS = st.integers(0, 20)
NOBODY = request()


class Expected(NamedTuple):
    """The sort key of a queue, and the entry."""

    order_ns: int
    shallowness: int
    sequence: int
    entry: Entry


class QueueMachine(RuleBasedStateMachine):
    """A queue against lists that are sorted again after every change: entries in time, and late entries."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue("m:1", "")
        self.model: list[Expected] = []
        self.late: list[Expected] = []
        self.sequence = 0
        self.pushed_rows = 0
        self.gone_rows = 0

    @rule(order_ns=ORDERS, stage=st.integers(0, 3), rows=st.integers(1, 4), times=st.integers(1, 40))
    def push(self, order_ns: int, stage: int, rows: int, times: int) -> None:
        for _ in range(times):
            self.sequence += 1
            entry = Entry(NOBODY, stage, rows, None, self.queue.key, order_ns, 0, self.sequence)
            first = self.queue.push(entry, order_ns)
            self.model.append(Expected(order_ns, -stage, self.sequence, entry))
            self.model.sort(key=lambda item: item[:3])
            assert first == (self.model[0].entry is entry)
            self.pushed_rows += rows

    @precondition(lambda self: self.model or self.late)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        items = self.late + self.model
        first = data.draw(st.integers(0, len(items) - 1))
        for item in items[first : first + 50]:
            self.queue.discard(item.entry)
            assert not item.entry.queued
        self.forget([item.entry for item in items[first : first + 50]])

    @rule(reachable_ns=ORDERS)
    def expire(self, reachable_ns: int) -> None:
        passed = [item for item in self.model if item.order_ns < reachable_ns]
        self.queue.expire(reachable_ns)
        assert all(item.entry.late for item in passed)
        self.late += passed
        del self.model[: len(passed)]

    @precondition(lambda self: self.model or self.late)
    @rule(max_rows=st.integers(1, 12), from_ns=st.one_of(st.just(0), ORDERS))
    def take(self, max_rows: int, from_ns: int) -> None:
        eligible = [item.entry for item in self.model if item.order_ns >= from_ns]
        in_order = [item.entry for item in self.late]
        taken = self.queue.take(max_rows, from_ns)
        assert not any(entry.queued for entry in taken)
        assert taken or not (eligible or in_order)
        assert sum(entry.rows for entry in taken) <= max_rows or len(taken) == 1
        in_time = [entry for entry in taken if not entry.late]
        assert len({id(entry) for entry in taken}) == len(taken)
        # The first ones, and of those that are late as well.
        assert in_time == eligible[: len(in_time)]
        behind = [entry for entry in taken if entry.late]
        assert behind == in_order[: len(behind)]
        if not in_order:
            room = max_rows - sum(entry.rows for entry in taken)
            left = [entry for entry in eligible if entry.queued]
            assert not left or left[0].rows > room
        self.forget(taken)

    def forget(self, entries: list[Entry]) -> None:
        gone = {id(entry) for entry in entries}
        self.gone_rows += sum(entry.rows for entry in entries)
        self.model = [item for item in self.model if id(item.entry) not in gone]
        self.late = [item for item in self.late if id(item.entry) not in gone]

    @rule(order_ns=ORDERS)
    def first_not_before(self, order_ns: int) -> None:
        expected = next((item.entry for item in self.model if item.order_ns >= order_ns), None)
        assert self.queue.first_not_before(order_ns) is expected

    @precondition(lambda self: self.model or self.late)
    @rule()
    def head(self) -> None:
        head = self.queue.head()
        if self.model:
            assert head is self.model[0].entry
        else:
            assert head in [item.entry for item in self.late]

    @invariant()
    def holds_what_it_should(self) -> None:
        held = [item.entry.sequence for item in self.model + self.late]
        assert sorted(entry.sequence for entry in self.queue.entries()) == sorted(held)
        assert self.queue.live == len(held)
        assert self.queue.late == len(self.late)
        assert self.queue.rows == self.pushed_rows - self.gone_rows
        assert bool(self.queue) == bool(held)


TestQueue = QueueMachine.TestCase

CELLS = st.dictionaries(st.integers(1, 70), st.integers(1, 10**9), min_size=1, max_size=8)


@st.composite
def estimates(draw: st.DrawFn) -> LatencyEstimate:
    """An estimate from a random table with random observations."""
    cells = tuple(sorted(draw(CELLS).items()))
    max_rows = draw(st.integers(1, 80))
    estimate = LatencyEstimate(LatencyTable(cells), max_rows, draw(st.integers(0, 10**6)))
    observations: list[tuple[Any, Any]] = draw(
        st.lists(st.tuples(st.integers(1, max_rows), st.integers(0, 10**10)), max_size=20)
    )
    for rows, latency_ns in observations:
        estimate.observe(rows, latency_ns)
    return estimate


@given(estimate=estimates(), budget_ns=st.integers(0, 2 * 10**9), data=st.data())
def test_the_largest_size_within_a_budget_is_the_largest(
    estimate: LatencyEstimate, budget_ns: int, data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, estimate.max_rows))
    within = [rows for rows in range(1, limit + 1) if estimate.service_ns(rows) <= budget_ns]
    assert estimate.rows_within(budget_ns, limit) == max(within, default=0)


@given(estimate=estimates())
def test_the_efficient_size_is_a_batch_size_and_no_smaller_one_is_as_good(estimate: LatencyEstimate) -> None:
    rates = {rows: rows / max(estimate.expected_ns(rows), 1) for rows in range(1, estimate.max_rows + 1)}
    efficient = estimate.efficient_rows
    assert 1 <= efficient <= estimate.max_rows
    assert rates[efficient] >= 0.99 * max(rates.values())
    assert estimate.row_ns(efficient) >= 0


@given(estimate=estimates(), rows=st.integers(1, 80))
def test_corrections_stay_within_bounds_and_decay_to_the_table(estimate: LatencyEstimate, rows: int) -> None:
    rows = min(rows, estimate.max_rows)
    profile_ns = estimate.profile_ns(rows)
    expected_ns = estimate.expected_ns(rows)
    assert profile_ns // 8 - 1 <= expected_ns <= profile_ns * 16 + 10**7
    assert expected_ns <= estimate.service_ns(rows) <= (expected_ns + 1) * 16
    for _ in range(80):
        estimate.decay()
    assert estimate.service_ns(rows) == pytest.approx(profile_ns, abs=1)


@given(estimate=estimates(), rows=st.integers(1, 80), latency_ns=st.integers(0, 10**10))
def test_an_observation_moves_the_estimate_towards_it(estimate: LatencyEstimate, rows: int, latency_ns: int) -> None:
    rows = min(rows, estimate.max_rows)
    expected_ns, before_ns = estimate.times_ns(rows)
    least_ns = estimate.expected_ns(1)
    estimate.observe(rows, latency_ns)
    # Of the mean, the usual skew is left out, which grows with the median.
    skew_ns = USUAL_SKEW * max(least_ns, estimate.expected_ns(1))
    if latency_ns > before_ns + 1:
        assert estimate.service_ns(rows) >= before_ns - skew_ns - 1
    elif latency_ns < expected_ns - MAX_PAUSE_NS:  # it is below the median, too
        assert estimate.service_ns(rows) <= before_ns + skew_ns + 1
