import re

import numpy as np
import pytest

from sluice.gateway.tensors.combiner import combine
from sluice.models.pipelines.pipeline import Combiner

SURE = np.array([[0.9, 0.1], [0.5, 0.5], [0.4, 0.6]], np.float32)
UNSURE = np.array([[0.6, 0.4], [0.0, 1.0], [0.6, 0.4]], np.float32)


def test_the_mean_keeps_shape_and_datatype() -> None:
    joined = combine(Combiner.MEAN, [SURE, UNSURE])
    assert joined.shape == (3, 2)
    assert joined.dtype == np.float32
    assert joined.ravel().tolist() == pytest.approx([0.75, 0.25, 0.25, 0.75, 0.5, 0.5])


def test_the_most_confident_member_answers_each_row_and_the_first_of_equals() -> None:
    np.testing.assert_array_equal(
        combine(Combiner.MOST_CONFIDENT, [SURE, UNSURE]), np.stack([SURE[0], UNSURE[1], SURE[2]])
    )


def test_a_member_that_is_not_a_number_never_is_the_most_confident() -> None:
    nan = np.full_like(SURE, np.nan)
    np.testing.assert_array_equal(combine(Combiner.MOST_CONFIDENT, [nan, UNSURE]), UNSURE)


def test_answers_of_different_shapes_are_refused() -> None:
    message = "answers of the shapes [3, 2], [3, 1] cannot be joined; expected equal shapes"
    with pytest.raises(ValueError, match=re.escape(message)):
        combine(Combiner.MEAN, [SURE, UNSURE[:, :1]])


def test_a_weighted_mean() -> None:
    joined = combine(Combiner.WEIGHTED_MEAN, [SURE, UNSURE], weights=(3, 1))
    assert joined.dtype == np.float32
    assert joined.ravel().tolist() == pytest.approx([0.825, 0.175, 0.375, 0.625, 0.45, 0.55])


def test_a_vote_is_the_share_of_members_that_prefer_a_class() -> None:
    third = np.array([[0.2, 0.8], [0.9, 0.1], [np.nan, 0.1]], np.float32)
    shares = combine(Combiner.VOTE, [SURE, UNSURE, third])
    assert shares.dtype == np.float32
    # In the last row the third is not a number, and does not vote.
    assert shares.ravel().tolist() == pytest.approx([2 / 3, 1 / 3, 2 / 3, 1 / 3, 0.5, 0.5])


def test_a_vote_of_labels_is_the_most_frequent_and_the_first_of_equals() -> None:
    labels = [np.array(each, np.int64) for each in ([[1], [7]], [[2], [8]], [[2], [9]])]
    joined = combine(Combiner.VOTE, labels)
    assert joined.dtype == np.int64
    assert joined.tolist() == [[2], [7]]


def test_items_are_put_behind_each_other() -> None:
    one, other = np.array([[1, 2], [3, 4]], np.int32), np.array([[5], [6]], np.int32)
    assert combine(Combiner.CONCAT, [one, other]).tolist() == [[1, 2, 5], [3, 4, 6]]


def test_answers_that_are_refused_are_called_by_their_names() -> None:
    grid = np.zeros((3, 2, 1), np.float32)
    message = (
        "answers of the shapes a.probs [3, 2], b.probs [3, 2, 1] cannot be joined; expected equal shapes except in the"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        combine(Combiner.CONCAT, [SURE, grid], names=["a.probs", "b.probs"])
