import math

import numpy as np
import pytest

from sluice.models.pipelines.confidence import confidence
from sluice.models.pipelines.pipeline import Confidence

ROWS = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Confidence.MAX, [0.5, 1.0, 1 / 3]),
        (Confidence.MARGIN, [0.2, 1.0, 0.0]),
        (Confidence.ENTROPY, [0.0627, 1.0, 0.0]),
    ],
)
def test_a_value_a_row(kind: Confidence, expected: list[float]) -> None:
    assert confidence(ROWS, kind) == pytest.approx(expected, abs=1e-4)
    assert confidence(ROWS, kind).dtype == np.float64


@pytest.mark.parametrize("kind", list(Confidence))
def test_a_row_with_nan_is_not_sure_at_all(kind: Confidence) -> None:
    rows = np.array([[0.9, math.nan, 0.1], [1.0, 0.0, 0.0]])
    assert confidence(rows, kind).tolist() == [0.0, 1.0]
    assert confidence(np.full((1, 1), math.nan), kind).tolist() == [0.0]


@pytest.mark.parametrize("kind", list(Confidence))
@pytest.mark.parametrize("rows", [[[7.0, -3.0]], [[math.inf, math.inf]], [[-math.inf, 0.0]], [[-1.0, -2.0]]])
def test_what_is_no_probability_stays_in_range(kind: Confidence, rows: list[list[float]]) -> None:
    assert 0.0 <= confidence(np.array(rows), kind)[0] <= 1.0


def test_items_of_any_shape_are_flattened() -> None:
    items = np.array([0.1, 0.2, 0.6, 0.1], np.float16).reshape(1, 2, 2, 1)
    assert confidence(items, Confidence.MARGIN) == pytest.approx([0.4], abs=1e-3)


def test_one_class_is_as_sure_as_its_probability() -> None:
    assert confidence(np.array([[0.7]]), Confidence.MAX).tolist() == [0.7]
    assert confidence(np.array([0.7]), Confidence.MARGIN).tolist() == [0.7]


@pytest.mark.parametrize("kind", list(Confidence))
def test_no_rows_and_no_classes(kind: Confidence) -> None:
    assert confidence(np.empty((0, 3)), kind).tolist() == []
    assert confidence(np.empty((2, 0)), kind).tolist() == [0.0, 0.0]
