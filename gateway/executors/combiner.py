"""Joining the answers of an ensemble's members."""

from collections.abc import Sequence

import numpy as np

from models.arrays import Array
from models.confidence import confidence
from models.pipeline import Combiner, Confidence


def combine(kind: Combiner, answers: Sequence[Array]) -> Array:
    """One answer from those of the members, all of shape (rows, *item) and one float dtype, which the result has, too.

    `mean` is the element-wise mean. `most_confident` takes each row from the member whose largest probability is the
    highest, the first one of equals. Raises ValueError for answers whose shapes differ.
    """
    if len({answer.shape for answer in answers}) > 1:
        shapes = ", ".join(str(list(answer.shape)) for answer in answers)
        raise ValueError(f"answers of the shapes {shapes} cannot be joined; expected equal shapes")
    members = np.stack(answers)
    if kind is Combiner.MEAN:
        return np.asarray(members.mean(axis=0, dtype=members.dtype))
    surest = np.argmax([confidence(answer, Confidence.MAX) for answer in answers], axis=0)
    return np.asarray(members[surest, np.arange(members.shape[1])])
