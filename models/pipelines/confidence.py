"""The confidence of a stage in each row, from its probabilities."""

import numpy as np
import numpy.typing as npt

from sluice.models.pipelines.pipeline import Confidence
from sluice.models.tensors.arrays import Array

Floats = npt.NDArray[np.float64]


def confidence(probabilities: Array, kind: Confidence) -> Floats:
    """Return one confidence in [0, 1] a row of `probabilities` (rows, *item), of any float dtype; an item is flattened.

    `max` is the largest probability, `margin` the largest minus the second (0 where there is none), `entropy` is 1 - H
    / ln K (K at least 2). A row with a NaN, or without classes, has confidence 0.
    """
    rows = probabilities.shape[0]
    classes = probabilities.size // rows if rows else 0
    if not classes:
        return np.zeros(rows)
    values = probabilities.reshape(rows, classes).astype(np.float64)
    with np.errstate(invalid="ignore"):
        sure = _MEASURES[kind](values)
    # fmax prefers a number to NaN.
    return np.asarray(np.minimum(np.fmax(sure, 0.0), 1.0))


def _max(values: Floats) -> Floats:
    return np.asarray(values.max(axis=1))


def _margin(values: Floats) -> Floats:
    if values.shape[1] == 1:
        return values[:, 0]
    # NaN sorts last, so a row with one has a NaN margin.
    top = np.partition(values, -2, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def _entropy(values: Floats) -> Floats:
    chances = np.minimum(np.maximum(values, 0.0), 1.0)
    # 0 ln 0 is 0, and NaN stays NaN.
    entropy = -(chances * np.log(np.where(chances == 0.0, 1.0, chances))).sum(axis=1)
    return np.asarray(1.0 - entropy / np.log(max(values.shape[1], 2)))


_MEASURES = {Confidence.MAX: _max, Confidence.MARGIN: _margin, Confidence.ENTROPY: _entropy}
