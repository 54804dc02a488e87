"""Clockwork's models on demand: what is admitted is in time, at the capacity and far beyond it."""

import pytest

from sluice.loadgen.papers.many_models import LOADS, play

REQUESTS = 2000


@pytest.mark.parametrize("load", LOADS)
def test_all_that_is_admitted_is_in_time_while_thousands_of_models_are_loaded(load: float) -> None:
    result = play(1, load, REQUESTS)
    assert result.requests == REQUESTS
    assert result.loads > 100
    assert (result.late, result.kept) == (0, 1.0)
    assert result.in_time == result.admitted / REQUESTS
