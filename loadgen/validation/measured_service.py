"""What batches of a model take, out of those that a live server ran: each time is a median, a pace, and a spread.

The pace is how much slower than usual a machine is for a while, which hits batches one after the other; the spread is
what is left to each.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.loadgen.validation.live_steps import ObservedBatch
from sluice.models.units import NS_PER_MS

SERVICE_STEPS = 20
"""Equal steps of probability between quantiles."""
PIECE, MOST_PIECES = 64, 64
"""Batches in a piece of the pace, and how many pieces are kept."""
_LEAST_BATCHES = 5
"""A batch size that ran less often has no times of its own."""
_SMOOTHED = 15
"""Successive batches whose median is the pace of the one in the middle."""

Floats = npt.NDArray[np.float64]


class MeasuredService:
    """The times of one model's batches in several runs, each in the order in which they ran."""

    def __init__(self, runs: Sequence[Sequence[ObservedBatch]]) -> None:
        by_rows: dict[int, list[int]] = {}
        for batch in itertools.chain(*runs):
            by_rows.setdefault(batch.rows, []).append(batch.ended_ns - batch.started_ns)
        often = {rows: times for rows, times in by_rows.items() if len(times) >= _LEAST_BATCHES}
        self._medians = {rows: float(np.median(times)) for rows, times in sorted((often or by_rows).items())}
        self._runs = runs

    def quantiles_ms(self) -> dict[int, tuple[float, ...]]:
        """By rows, the times at the usual pace as `ServiceTimes` takes them.

        Every size has its own median; how times spread about it is taken from all sizes of the same power of two. The
        spread is that of a usual run, each quantile the median of those of the runs.
        """
        spreads: dict[int, list[list[float]]] = {}
        for batches in self._runs:
            of_run: dict[int, list[float]] = {}
            known = [batch for batch in batches if batch.rows in self._medians]
            for batch, spread in zip(known, self._ratios(known) / self._pace(known), strict=True):
                of_run.setdefault(batch.rows.bit_length(), []).append(spread)
            for size, values in of_run.items():
                spreads.setdefault(size, []).append(values)
        usual = {size: _usual_quantiles(values) for size, values in spreads.items()}
        return {
            rows: tuple(np.round(usual[rows.bit_length()] * median / NS_PER_MS, 4).tolist())
            for rows, median in self._medians.items()
        }

    def pace(self, runs: Sequence[Sequence[ObservedBatch]]) -> tuple[tuple[float, ...], ...]:
        """Pieces of successive batches: by which factor each was slower than usual, as `Pace` takes them.

        A run that is shorter than a piece is one; of others a last piece that is shorter is left out.
        """
        pieces = [
            tuple(np.round(paces[start : start + PIECE], 3).tolist())
            for paces in map(self._pace, runs)
            if len(paces)
            for start in range(0, max(len(paces) - PIECE + 1, 1), PIECE)
        ]
        return tuple(pieces[:: -(-len(pieces) // MOST_PIECES) or 1])

    def _pace(self, batches: Sequence[ObservedBatch]) -> Floats:
        return _smoothed(self._ratios([batch for batch in batches if batch.rows in self._medians]))

    def _ratios(self, batches: Sequence[ObservedBatch]) -> Floats:
        return np.array([(batch.ended_ns - batch.started_ns) / self._medians[batch.rows] for batch in batches], float)


def quantiles(values: Floats, steps: int) -> Floats:
    """Quantiles of ascending values at equal steps, the largest so that the last step has the right mean."""
    found: Floats = np.quantile(values, np.linspace(0, 1, steps + 1))
    tail = max(1, len(values) // steps)
    found[-1] = max(2 * values[-tail:].mean() - found[-2], found[-2])
    return found


def _usual_quantiles(runs: Sequence[Sequence[float]]) -> Floats:
    """The median over the runs of each quantile; of all values together where no run has enough for its own."""
    enough = [values for values in runs if len(values) >= SERVICE_STEPS] or [list(itertools.chain(*runs))]
    usual: Floats = np.median([quantiles(np.sort(values), SERVICE_STEPS) for values in enough], axis=0)
    return usual


def _smoothed(ratios: Floats) -> Floats:
    """Of each and those around it, fewer at the ends, the median."""
    half = _SMOOTHED // 2
    medians = [np.median(ratios[max(place - half, 0) : place + half + 1]) for place in range(len(ratios))]
    return np.array(medians, float)
