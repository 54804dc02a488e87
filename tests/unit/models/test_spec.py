import pytest

from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec, element_count

X = TensorSpec("x", DataType.FP32, (3, -1))


@pytest.mark.parametrize(
    ("maximum", "menu"),
    [(0, (1,)), (1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))],
)
def test_the_menu_doubles_up_to_the_maximum(maximum: int, menu: tuple[int, ...]) -> None:
    assert ModelSpec("m", 1, (X,), (X,), maximum).menu == menu


def test_the_wire_shape_has_the_batch_in_front() -> None:
    assert ModelSpec("m", 1, (X,), (X,), 8).wire_shape(X) == (-1, 3, -1)
    assert ModelSpec("m", 1, (X,), (X,), 0).wire_shape(X) == (3, -1)


@pytest.mark.parametrize(
    ("shape", "accepted"), [((3, 7), True), ((3, 0), True), ((2, 7), False), ((3,), False), ((3, 7, 1), False)]
)
def test_a_spec_accepts_items_of_its_shape(shape: tuple[int, ...], accepted: bool) -> None:
    assert X.accepts(shape) is accepted


def test_element_count() -> None:
    assert [element_count(shape) for shape in ((), (3,), (3, 0), (2, 3, 4))] == [1, 3, 0, 24]
