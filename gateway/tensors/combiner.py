"""Joining the answers of an ensemble's members."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.models.pipelines.confidence import confidence
from sluice.models.pipelines.pipeline import Combiner, Confidence
from sluice.models.tensors.arrays import Array

Confidences = tuple[tuple[float, ...], ...]
"""One tuple a confidence that a model reports, each with one value a row."""

Combined = tuple[Confidences, str]
"""The confidences of a combiner, and the key that tells apart outputs whose shapes differ."""


def combine(
    kind: Combiner, answers: Sequence[Array], *, weights: Sequence[float] = (), names: Sequence[str] = ()
) -> Array:
    """One answer from those of the members, of shapes (rows, *item) and one dtype, which the result has, too.

    `mean` is the element-wise mean, `weighted_mean` that with a weight for each member. `most_confident` takes each row
    from the member whose largest probability is the highest, the first one of equals. `vote` of probabilities is the
    share of the members that prefer each class (one whose row is not a number does not vote), of integers the most
    frequent value, the first one of equals. `concat` puts the items one behind the other in their last dimension.
    Raises ValueError for answers whose shapes do not fit; `names` are what it calls the answers.
    """
    _check_shapes(kind, answers, names)
    if kind is Combiner.CONCAT:
        return np.concatenate(answers, axis=-1)
    members: Any = np.stack(answers)
    if kind is Combiner.MEAN:
        return np.asarray(members.mean(axis=0, dtype=members.dtype))
    if kind is Combiner.WEIGHTED_MEAN:
        shares = np.asarray(weights, np.float64) / sum(weights)
        return np.asarray(np.tensordot(shares.astype(members.dtype), members, axes=1))
    if kind is Combiner.VOTE:
        return _shares(members) if members.dtype.kind == "f" else _most_frequent(members)
    surest = np.argmax([confidence(answer, Confidence.MAX) for answer in answers], axis=0)
    return np.asarray(members[surest, np.arange(members.shape[1])])


def _check_shapes(kind: Combiner, answers: Sequence[Array], names: Sequence[str]) -> None:
    joined = [answer.shape[:-1] if kind is Combiner.CONCAT else answer.shape for answer in answers]
    if len(set(joined)) > 1:
        shapes = [str(list(answer.shape)) for answer in answers]
        said = [f"{name} {shape}" for name, shape in zip(names, shapes, strict=True)] if names else shapes
        but = " but for the last dimension" if kind is Combiner.CONCAT else ""
        raise ValueError(f"answers of the shapes {', '.join(said)} cannot be joined; expected equal shapes{but}")


def _shares(members: Any) -> Array:
    """The shares of votes, of probabilities of shape (members, rows, classes)."""
    votes = ~np.isnan(members).any(axis=2)
    choices = np.argmax(np.where(votes[:, :, None], members, 0), axis=2)
    shares = np.zeros(members.shape[1:], members.dtype)
    rows = np.arange(members.shape[1])
    for choice, vote in zip(choices, votes, strict=True):
        shares[rows, choice] += vote
    return np.asarray(shares / np.maximum(votes.sum(axis=0), 1)[:, None], members.dtype)


def _most_frequent(members: Any) -> Array:
    """The value that most members have, element by element."""
    counts = np.stack([(members == member).sum(axis=0) for member in members])
    return np.asarray(np.take_along_axis(members, counts.argmax(axis=0)[None], axis=0)[0])
