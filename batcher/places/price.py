"""The price of a place: whether a batch is worth opening now, or only later, when it could be larger.

A batch that is opened for a request with little time left stays small, and a small batch takes more time of its
partition for each row. Once more is offered than small batches can serve, they would be all that runs: the partition
does least when most is asked of it. Nexus (SOSP'19, section 4) drops requests early for the same reason.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import hypot, sqrt
from typing import NamedTuple

from sluice.batcher.places.planned_batches import length_on_ns, slow_ns, spread_ns
from sluice.batcher.state import ModelState, PartitionGroup, PipelineState, StageState

WORTHWHILE = 1.02
"""Waiting for a larger batch is worth it if its rate is higher by this factor."""
CALM = 1.1
"""Where the best batches could serve this many times the rows that come, those behind a small one are larger again."""
MOST_SHARED = 2.0
"""The open batch of several partitions gets at least one in this many of all rows."""
NEAR = 0.9
"""The least rate of batches that are planned before others, in parts of the highest."""
MOST_GATHERED = 64
"""The most batches of a first stage whose rows are gathered for one batch of a later stage."""


class Opening(NamedTuple):
    """The sizes of the batches that a request opens on a group, by ascending `rows` of its first stage there.

    `cost_ns` is the time that its stages take of a partition of the group. The last one may take `slow_ns` longer than
    expected, and `spread_ns` since more rows may go on to it.
    """

    rows: Sequence[int]
    cost_ns: Sequence[int]
    slow_ns: Sequence[float]
    spread_ns: Sequence[int]

    def added_ns(self, index: int, depth: float) -> int:
        """The time by which a request ends later than with one row; `depth` is as in `PlannedBatch`."""
        return self._end_ns(index, depth) - self._end_ns(0, depth)

    def _end_ns(self, index: int, depth: float) -> int:
        return self.cost_ns[index] + int(hypot(depth * self.slow_ns[index], self.spread_ns[index]))


class _Following(NamedTuple):
    """A later stage on the same group: the share of the rows that go on to it, and whether it opens a batch, too."""

    model: ModelState
    share: float
    is_opened: bool


def opening(
    pipeline: PipelineState, first: StageState, opened: Collection[int], group: PartitionGroup, hand_off_ns: int
) -> Opening:
    """The openings of a pipeline on a group, where it opens batches for the stages `opened`, the first one `first`.

    Its other stages there join batches. Where only some of the rows go on to later stages, several batches of the first
    stage may share one of those. O(batch sizes * stages).
    """
    model = first.model
    assert model is not None, "a combiner has no batches"
    estimate = model.estimates[group.kind]
    full = model.full_rows(estimate)
    reach = pipeline.reach[first.index] or 1.0
    beside = [
        _Following(each.model, pipeline.reach[each.index] / reach, each.index in opened)
        for each in pipeline.stages
        if each is not first and each.model is not None and group in each.model.groups
    ]
    sizes = [size for size in estimate.sizes if size < full] + [full]
    shared = [each for each in beside if each.is_opened]
    if shared and all(each.share < 1 for each in shared):
        most = min(each.model.config.max_batch / each.share for each in shared)
        sizes += [full * batches for batches in range(2, min(int(most / full), MOST_GATHERED) + 1)]
    costs = [_cost_ns(model, beside, group, rows, full, hand_off_ns) for rows in sizes]
    last = beside[-1] if beside else _Following(model, 1.0, True)
    tails = [_tails_ns(last, rows, group, pipeline.caution) for rows in sizes]
    return Opening(sizes, costs, [slow_ns for slow_ns, _ in tails], [spread_ns for _, spread_ns in tails])


def _cost_ns(
    model: ModelState, beside: Sequence[_Following], group: PartitionGroup, rows: int, full: int, hand_off_ns: int
) -> int:
    """The time that `rows` rows take of a partition, in batches of `full` rows at most."""
    batches = -(-rows // full)
    cost_ns = batches * length_on_ns(group, model, rows / batches)
    for other, share, is_opened in beside:
        estimate = other.estimates[group.kind]
        most = other.config.max_batch
        if is_opened:
            own = min(rows * share, most)
            cost_ns += length_on_ns(group, other, own) + hand_off_ns + group.way_ns(other, own)
        else:
            cost_ns += int(rows * share * (estimate.expected_ns(most) - estimate.expected_ns(1)) / max(most - 1, 1))
    return cost_ns


def _tails_ns(last: _Following, rows: int, group: PartitionGroup, caution: float) -> tuple[float, int]:
    own = min(rows * last.share, last.model.config.max_batch)
    variance = own * (1 - last.share) if last.share < 1 else 0.0
    estimate = last.model.estimates[group.kind]
    return slow_ns(estimate, own, caution), spread_ns(estimate, own, variance, own / last.share)


def larger_later_ns(
    opening: Opening,
    until_ns: int,
    left_ns: int,
    depth: float,
    row_gap_ns: float,
    share: float,
    partitions: int,
    *,
    is_last: bool,
) -> tuple[float, int]:
    """The rows to expect of batches that start in `until_ns`, and how long to wait until larger ones can be opened.

    `left_ns` is the time by which the request could be complete later than with batches of one row, whose end varies by
    `depth` as in `PlannedBatch`. There is no need to wait (0) if they can be full, if none that is opened later would
    have a higher rate, or if even such small batches serve all rows that come in the `share` of the partition's time,
    or the best ones that there is time for `CALM` times as many.
    Rows come to the group every `row_gap_ns`, and each request has as much time as this one. Each of its `partitions`
    runs its part of them. One batch is open at a time: where partitions start in turn it gets all rows that come, and
    where they start at once its part, so it is taken to get more than that by the root of their number. Batches that
    are not the last ones of their partition take their time from those behind them, so their rate must be near the
    highest on an idle machine.
    """
    rows, cost_ns = opening.rows, opening.cost_ns
    most = len(rows) - 1
    while most and opening.added_ns(most, depth) > left_ns:
        most -= 1
    open_gap_ns, own_gap_ns = row_gap_ns * min(sqrt(partitions), MOST_SHARED), row_gap_ns * partitions
    come = min(float(rows[most]), 1 + until_ns / open_gap_ns)
    if most == len(rows) - 1:
        return come, 0
    index = most
    while index and rows[index - 1] >= come:
        index -= 1
    rate = come / max(cost_ns[index], 1)
    if share * rate * own_gap_ns >= 1:
        return come, 0
    best = max(
        [
            size / cost_ns[index]
            for index, size in enumerate(rows)
            if opening.added_ns(index, 1.0) + size * own_gap_ns <= left_ns + until_ns
        ],
        default=rate,
    )
    if share * best * own_gap_ns >= CALM:
        return come, 0
    if not is_last:
        return come, 0 if rate >= NEAR * best else until_ns + 1
    for larger in range(most + 1, len(rows)):
        wait_ns = opening.added_ns(larger, depth) - left_ns
        if wait_ns > until_ns:
            break
        if until_ns - wait_ns >= rows[larger] * open_gap_ns and rows[larger] > WORTHWHILE * rate * cost_ns[larger]:
            return come, wait_ns
    return come, 0
