"""Fit of a model's service times to the batches of a live server: a median for each batch size, a pace and a spread.

The pace is a slow drift of the machine's speed, which affects successive batches alike. The spread is the remaining
variation of single batches.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.loadgen.validation.server_activity import ObservedBatch
from sluice.models.units import NS_PER_MS

SERVICE_STEPS = 20
"""Steps of equal probability between the quantiles of service times."""
PIECE_BATCHES, MAX_PIECES = 64, 64
"""Batches in a piece of the pace, and most pieces that are kept."""
_MIN_BATCHES = 5
"""A batch size that ran less often gets no times of its own."""
_WINDOW = 15
"""Successive batches whose median is the pace of the middle one."""

Floats = npt.NDArray[np.float64]


class ServiceTimeFit:
    """Service times of one model's batches, given for several runs in order of execution."""

    def __init__(self, runs: Sequence[Sequence[ObservedBatch]]) -> None:
        by_rows: dict[int, list[int]] = {}
        for batch in itertools.chain(*runs):
            by_rows.setdefault(batch.rows, []).append(batch.ended_ns - batch.started_ns)
        often = {rows: times for rows, times in by_rows.items() if len(times) >= _MIN_BATCHES}
        self._medians = {rows: float(np.median(times)) for rows, times in sorted((often or by_rows).items())}
        self._runs = runs

    def quantiles_ms(self) -> dict[int, tuple[float, ...]]:
        """Quantiles of the service times at the usual pace, by rows: the `service_ms` of a simulation file.

        Every batch size has its own median. The spread about it comes from all sizes of the same power of two, and each
        of its quantiles is the median of that quantile over the runs.
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
        """Slowdown factors of successive batches in pieces: the `pace` of a simulation file.

        A run shorter than a piece is one piece; otherwise a last incomplete piece is dropped.
        """
        pieces = [
            tuple(np.round(paces[start : start + PIECE_BATCHES], 3).tolist())
            for paces in map(self._pace, runs)
            if len(paces)
            for start in range(0, max(len(paces) - PIECE_BATCHES + 1, 1), PIECE_BATCHES)
        ]
        return tuple(pieces[:: -(-len(pieces) // MAX_PIECES) or 1])

    def _pace(self, batches: Sequence[ObservedBatch]) -> Floats:
        return _smoothed(self._ratios([batch for batch in batches if batch.rows in self._medians]))

    def _ratios(self, batches: Sequence[ObservedBatch]) -> Floats:
        return np.array([(batch.ended_ns - batch.started_ns) / self._medians[batch.rows] for batch in batches], float)


def quantiles(values: Floats, steps: int) -> Floats:
    """Quantiles of ascending values at equal steps; the largest is set so that the last step has the right mean."""
    found: Floats = np.quantile(values, np.linspace(0, 1, steps + 1))
    tail = max(1, len(values) // steps)
    found[-1] = max(2 * values[-tail:].mean() - found[-2], found[-2])
    return found


def _usual_quantiles(runs: Sequence[Sequence[float]]) -> Floats:
    """The median over the runs of each quantile; all values together where no run has enough of its own."""
    enough = [values for values in runs if len(values) >= SERVICE_STEPS] or [list(itertools.chain(*runs))]
    usual: Floats = np.median([quantiles(np.sort(values), SERVICE_STEPS) for values in enough], axis=0)
    return usual


def _smoothed(ratios: Floats) -> Floats:
    """The running median, over a shorter window at both ends."""
    half = _WINDOW // 2
    medians = [np.median(ratios[max(index - half, 0) : index + half + 1]) for index in range(len(ratios))]
    return np.array(medians, float)
