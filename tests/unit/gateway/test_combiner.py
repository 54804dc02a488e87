import re

import numpy as np
import pytest

from gateway.executors.combiner import combine
from models.pipeline import Combiner

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
