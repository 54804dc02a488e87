import pytest

from sluice.batcher.interface.config import CompeteConfig
from sluice.loadgen.papers.competing_copies import HEDGED, P99_MS, cascading, competing


def test_the_published_figures_are_those_of_the_benchmark() -> None:
    assert P99_MS == {1: 334.8, 2: 212.5, 3: 165.8, 5: 124.9, 7: 104.2}
    assert HEDGED == {50: (264, 50), 75: (285, 25), 90: (307, 10), 95: (320, 5)}


def test_the_same_seeds_give_the_same_run() -> None:
    first, again = (competing(CompeteConfig(2, percentile=90.0), 200, 2) for _ in range(2))
    assert first == again
    assert 1.05 < first.batches < 1.15


def test_only_rows_of_which_the_first_model_is_unsure_go_on() -> None:
    cascade = cascading(300)
    assert (cascade.below, cascade.above) == (1.0, 0.0)
    assert cascade.share == pytest.approx(0.7, abs=0.08)
