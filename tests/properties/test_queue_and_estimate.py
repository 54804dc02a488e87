from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batcher.estimate import LatencyEstimate
from batcher.lifecycle import Entry, Request
from batcher.queue import Queue
from models.profile import LatencyTable

ORDERS = st.integers(0, 20)
NOBODY = cast("Request", None)


class Expected(NamedTuple):
    """The key by which a queue is ordered, and the entry."""

    order_ns: int
    shallowness: int
    sequence: int
    entry: Entry


class QueueMachine(RuleBasedStateMachine):
    """A queue against a list that is sorted anew after every push."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue("m:1", "")
        self.model: list[Expected] = []
        self.discarded = 0
        self.sequence = 0

    @rule(order_ns=ORDERS, stage=st.integers(0, 3), rows=st.integers(1, 4), times=st.integers(1, 40))
    def push(self, order_ns: int, stage: int, rows: int, times: int) -> None:
        for _ in range(times):
            self.sequence += 1
            entry = Entry(NOBODY, stage, rows, None, self.queue, order_ns, 0, self.sequence)
            self.queue.push(entry, order_ns)
            self.model.append(Expected(order_ns, -stage, self.sequence, entry))
        self.model.sort(key=lambda item: item[:3])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        for item in self.model[first : first + 50]:
            self.queue.discard(item.entry)
            assert not item.entry.queued
            self.discarded += 1
        del self.model[first : first + 50]

    @precondition(lambda self: self.model)
    @rule(max_rows=st.integers(1, 12))
    def take(self, max_rows: int) -> None:
        expected = [self.model[0].entry]
        for item in self.model[1:]:
            if sum(entry.rows for entry in expected) + item.entry.rows > max_rows:
                break
            expected.append(item.entry)
        taken = self.queue.take(max_rows)
        assert [entry.sequence for entry in taken] == [entry.sequence for entry in expected]
        assert not any(entry.queued for entry in taken)
        del self.model[: len(taken)]

    @rule(order_ns=ORDERS)
    def first_not_before(self, order_ns: int) -> None:
        expected = next((item.entry for item in self.model if item.order_ns >= order_ns), None)
        assert self.queue.first_not_before(order_ns) is expected

    @rule(order_ns=ORDERS)
    def behind(self, order_ns: int) -> None:
        later = sum(item.order_ns > order_ns for item in self.model)
        assert later <= self.queue.behind(order_ns) <= later + self.discarded

    @precondition(lambda self: self.model)
    @rule()
    def head(self) -> None:
        assert self.queue.head() is self.model[0].entry

    @invariant()
    def holds_what_it_should(self) -> None:
        assert list(self.queue.entries()) == [item.entry for item in self.model]
        assert self.queue.live == len(self.model)
        assert self.queue.rows == sum(item.entry.rows for item in self.model)
        assert bool(self.queue) == bool(self.model)


TestQueue = QueueMachine.TestCase

CELLS = st.dictionaries(st.integers(1, 70), st.integers(1, 10**9), min_size=1, max_size=8)


@st.composite
def estimates(draw: st.DrawFn) -> LatencyEstimate:
    """An estimate of any table, with anything observed."""
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
    hand_off_ns = estimate._hand_off_ns
    rates = {
        rows: rows / (estimate.service_ns(rows) + hand_off_ns)
        for rows in range(1, estimate.max_rows + 1)
        if estimate.service_ns(rows) + hand_off_ns
    }
    efficient = estimate.efficient_rows
    assert 1 <= efficient <= estimate.max_rows
    assert rates[efficient] >= 0.97 * max(rates.values())
    assert estimate.row_ns(efficient) >= 0


@given(estimate=estimates(), rows=st.integers(1, 80))
def test_corrections_stay_within_bounds_and_decay_to_the_table(estimate: LatencyEstimate, rows: int) -> None:
    rows = min(rows, estimate.max_rows)
    profile_ns = estimate.profile_ns(rows)
    assert profile_ns // 8 - 1 <= estimate.service_ns(rows) <= profile_ns * 16
    for _ in range(80):
        estimate.decay()
    assert estimate.service_ns(rows) == pytest.approx(profile_ns, abs=1)


@given(estimate=estimates(), rows=st.integers(1, 80), latency_ns=st.integers(0, 10**10))
def test_an_observation_moves_the_estimate_towards_it(estimate: LatencyEstimate, rows: int, latency_ns: int) -> None:
    rows = min(rows, estimate.max_rows)
    before_ns = estimate.service_ns(rows)
    estimate.observe(rows, latency_ns)
    if latency_ns > before_ns + 1:
        assert estimate.service_ns(rows) >= before_ns
    elif latency_ns < before_ns:
        assert estimate.service_ns(rows) <= before_ns
