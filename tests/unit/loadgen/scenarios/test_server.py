import numpy as np
import pytest

from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.server import ServerScenario
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError


def server(samples: int, **settings: object) -> Schedule:
    return ServerScenario().schedule(RunConfig(target="", model="", **settings), samples)  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_schedule() -> None:
    first = server(10, rate=100.0, duration_s=5.0, queries=None, each_once=False, seed=42)
    again = server(10, rate=100.0, duration_s=5.0, queries=None, each_once=False, seed=42)
    other = server(10, rate=100.0, duration_s=5.0, queries=None, each_once=False, seed=43)
    assert first.digest == again.digest != other.digest


def test_the_number_of_samples_does_not_move_the_arrivals() -> None:
    few = server(10, rate=100.0, duration_s=5.0, queries=None, each_once=False, seed=42)
    many = server(1000, rate=100.0, duration_s=5.0, queries=None, each_once=False, seed=42)
    assert few.due_ns.tolist() == many.due_ns.tolist()


def test_samples_are_drawn_uniformly_with_replacement() -> None:
    schedule = server(10, rate=1000.0, duration_s=None, queries=100_000, each_once=False, seed=5)
    counts = np.bincount(schedule.sample, minlength=10)
    assert len(counts) == 10
    # Six standard deviations around 10 000.
    assert ((counts > 9430) & (counts < 10_570)).all()


def test_each_once_sends_every_sample_once_shuffled() -> None:
    schedule = server(899, rate=1000.0, duration_s=None, queries=None, each_once=True, seed=5)
    assert sorted(schedule.sample.tolist()) == list(range(899))
    assert schedule.sample.tolist() != list(range(899))


def test_each_once_is_cut_by_a_number_of_queries() -> None:
    schedule = server(899, rate=1000.0, duration_s=None, queries=5, each_once=True, seed=5)
    assert len(set(schedule.sample.tolist())) == len(schedule) == 5


def test_a_schedule_without_queries_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no query falls into 0\.001 s"):
        server(10, rate=0.1, duration_s=0.001, queries=None, each_once=False, seed=1)
