"""Combiners: one answer from those of an ensemble's members."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.batcher.interface.events import Confidences
from sluice.models.pipelines.confidence import confidence
from sluice.models.pipelines.pipeline import Combiner, Confidence
from sluice.models.tensors.arrays import Array

Combined = tuple[Confidences, str, int]
"""The confidences of a combiner, the key that tells apart outputs whose shapes differ, and the members joined."""


def combine(
    kind: Combiner, answers: Sequence[Array], *, weights: Sequence[float] = (), names: Sequence[str] = ()
) -> Array:
    """Combine the members' answers, of shapes (rows, *item) and one dtype, which the result has as well.

    `mean` is the element-wise mean, `weighted_mean` that with a weight per member. `most_confident` takes each row from
    the member with the largest probability, the first one of equals. `vote` of probabilities is the share of the
    members that prefer each class, without members whose row is not a number; `vote` of integers is the most frequent
    value, the first one of equals. `concat` joins the items in their last dimension. Raises ValueError for answers
    whose shapes do not fit; `names` are the answers' names for the message.
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
        but = " except in the last dimension" if kind is Combiner.CONCAT else ""
        raise ValueError(f"answers of the shapes {', '.join(said)} cannot be joined; expected equal shapes{but}")


def _shares(members: Any) -> Array:
    """The share of votes for each class, from probabilities of shape (members, rows, classes)."""
    votes = ~np.isnan(members).any(axis=2)
    choices = np.argmax(np.where(votes[:, :, None], members, 0), axis=2)
    shares = np.zeros(members.shape[1:], members.dtype)
    rows = np.arange(members.shape[1])
    for choice, vote in zip(choices, votes, strict=True):
        shares[rows, choice] += vote
    return np.asarray(shares / np.maximum(votes.sum(axis=0), 1)[:, None], members.dtype)


def _most_frequent(members: Any) -> Array:
    """The value that most members have, for each element."""
    counts = np.stack([(members == member).sum(axis=0) for member in members])
    return np.asarray(np.take_along_axis(members, counts.argmax(axis=0)[None], axis=0)[0])
