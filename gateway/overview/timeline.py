"""The timeline: the batches of the last seconds as bars, as many as can be drawn."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.gateway.observability.traces.trace import BatchTrace
from sluice.models.units import NS_PER_MS, NS_PER_S

KEPT_STEPS = 10
"""Steps of a second whose bars are kept."""
_FIRST_CELL_NS = 2 * NS_PER_MS
_LAST_CELL_NS = NS_PER_S


@dataclass(slots=True)
class Bar:
    """One batch, or several of one model on one partition that are drawn as one: `merged` is how many there are.

    `batch` is the number of the first of them. `busy_ns` is the time that all of them took, `rows` are those of all.
    """

    number: int
    batch: int
    partition: str
    model: str
    start_ns: int
    busy_ns: int
    rows: int
    merged: int = 1


class Timeline:
    """Keeps the bars of the last steps, at most `limit` of each step.

    When there are more batches, those of one model and partition that start within the same cell of time become one
    bar; cells grow until there is room. What does not fit in cells of a second is left out, and counted in `left_out`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left_out = 0
        self._cell_ns = 0
        self._open: list[Bar] = []
        self._cells: dict[tuple[str, str, int], Bar] = {}
        self._left_out = 0
        self._steps: deque[list[Bar]] = deque(maxlen=KEPT_STEPS)
        self._number = 0

    def batch_ended(self, run: BatchTrace) -> None:
        """Record a batch that has completed. O(1), amortised."""
        batch = run.batch
        bar = Bar(
            0, batch.batch, batch.partition, batch.model, run.started_ns, run.ended_ns - run.started_ns, batch.rows
        )
        if not self._put(bar):
            while len(self._open) >= self.limit and self._cell_ns < _LAST_CELL_NS:
                self._widen()
            if not self._put(bar):
                self._left_out += 1

    def end_step(self) -> None:
        """Make the bars that have come since the last step available."""
        for bar in self._open:
            self._number += 1
            bar.number = self._number
        self._steps.append(self._open)
        self.left_out, self._left_out = self._left_out, 0
        if len(self._open) < self.limit // 4:
            self._cell_ns = 0 if self._cell_ns <= _FIRST_CELL_NS else self._cell_ns // 2
        self._open, self._cells = [], {}

    @property
    def last(self) -> int:
        """The number of the latest bar."""
        return self._number

    def bars(self, since: int | None, most: int) -> list[Bar]:
        """The bars with a number above `since` in their order; None: those of the last steps, whole steps only.

        There are at most `most`, the latest ones.
        """
        found: list[Bar] = []
        for step in reversed(self._steps):
            new = [bar for bar in step if since is None or bar.number > since]
            if since is None and found and len(found) + len(new) > most:
                break
            found = new + found
            if len(found) >= most:
                break
        return found[-most:] if most else []

    def recent_models(self, partition: str) -> list[str]:
        """The models that a partition ran in the last step, the latest first."""
        latest: Iterable[Bar] = reversed(self._steps[-1]) if self._steps else ()
        return list(dict.fromkeys(bar.model for bar in latest if bar.partition == partition))

    def _put(self, bar: Bar) -> bool:
        """Add a bar, to another one if it is in the same cell; False if there is no room."""
        key = (bar.partition, bar.model, bar.start_ns // self._cell_ns) if self._cell_ns else None
        same = None if key is None else self._cells.get(key)
        if same is not None:
            same.busy_ns += bar.busy_ns
            same.rows += bar.rows
            same.merged += bar.merged
            return True
        if len(self._open) >= self.limit:
            return False
        self._open.append(bar)
        if key is not None:
            self._cells[key] = bar
        return True

    def _widen(self) -> None:
        self._cell_ns = max(2 * self._cell_ns, _FIRST_CELL_NS)
        bars, self._open, self._cells = self._open, [], {}
        for bar in bars:
            self._put(bar)


def models_of(bars: Iterable[Bar]) -> Iterator[str]:
    """The models of bars, each once, in the order in which they come first."""
    yield from dict.fromkeys(bar.model for bar in bars)
