import pytest

from sluice.batcher.planner.problem.graph import (
    Parallel,
    Residual,
    Series,
    Shape,
    Sources,
    ancestors,
    decompose,
    tangle,
)
from tests.support.scheduling.planning import chain

N: Sources = ((), (), (0, 1), (1,))
"""2 after 0 and 1, 3 after 1: the smallest order that is not series-parallel."""


@pytest.mark.parametrize(
    ("sources", "shape"),
    [
        (((),), 0),
        (chain(3), Series((0, 1, 2))),
        (((), ()), Parallel((0, 1))),
        (((), (0,), (0,), (1, 2)), Series((0, Parallel((1, 2)), 3))),
        (((), (), (0,), (1,)), Parallel((Series((0, 2)), Series((1, 3))))),
        (((), (), (0, 1), (0, 1)), Series((Parallel((0, 1)), Parallel((2, 3))))),
        (((), (0,), (0, 1), (0, 1, 2)), Series((0, 1, 2, 3))),
        (((), (0,), (1,), (0,), (0, 2, 3)), Series((0, Parallel((Series((1, 2)), 3)), 4))),
    ],
    ids=["stage", "chain", "two", "diamond", "two chains", "two joins", "cascade with all edges", "ensemble"],
)
def test_series_and_parallel_parts_are_found_whatever_edges_are_implied(sources: Sources, shape: Shape) -> None:
    assert decompose(sources) == shape
    assert tangle(sources) == 0


def test_an_n_is_left_over() -> None:
    assert decompose(N) == Residual((0, 1, 2, 3), N)
    assert tangle(N) == 4


def test_the_parts_of_what_is_left_over_are_regions_of_their_own() -> None:
    # Node 1 of the N is a diamond (1, 2 beside 3, 4), and a stage follows the whole.
    sources = ((), (), (1,), (1,), (2, 3), (0, 4), (4,), (5, 6))
    diamond = Series((1, Parallel((2, 3)), 4))
    assert decompose(sources) == Series((Residual((0, diamond, 5, 6), N), 7))


def test_ancestors_are_direct_and_indirect() -> None:
    assert ancestors(((), (0,), (1,), ())) == ((), (0,), (0, 1), ())
