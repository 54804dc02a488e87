from typing import Any

import pytest

from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds, SampleChoice
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError


def schedule(samples: int = 128, **settings: Any) -> Schedule:
    config = RunConfig(target="", model="m", arrivals=Arrivals(ArrivalProcess.MLPERF), **settings)
    return SCENARIOS[config.scenario].schedule(config, samples)


def test_a_duration_is_that_of_loadgen() -> None:
    made = schedule(rate=1000.0, duration_s=3.0)
    assert len(made) == 3039
    assert made.due_ns[-1] == 3_001_731_688
    assert made.sample[:8].tolist() == [89, 7, 21, 34, 94, 42, 42, 105]
    assert schedule(rate=1000.0, min_duration_s=3.0).digest == made.digest


@pytest.mark.parametrize(
    ("bounds", "queries"),
    [
        ({"duration_s": 0.001}, 100),  # LoadGen's least number
        ({"min_duration_s": 0.001, "min_queries": 7}, 7),
        ({"queries": 50}, 50),
        ({"duration_s": 3.0, "queries": 50}, 50),
        ({"min_duration_s": 3.0, "duration_s": 3.0}, 3038),
        ({"min_queries": 4000}, 4000),
        ({"each_once": True}, 128),
        ({"each_once": True, "queries": 30}, 30),
    ],
)
def test_bounds_cut_the_same_sequence(bounds: dict[str, Any], queries: int) -> None:
    made = schedule(rate=1000.0, **bounds)
    whole = schedule(rate=1000.0, min_queries=bounds.get("min_queries"), duration_s=None, min_duration_s=5.0)
    assert len(made) == queries
    if "each_once" not in bounds:
        assert made.due_ns.tolist() == whole.due_ns[:queries].tolist()
        assert made.sample.tolist() == whole.sample[:queries].tolist()


def test_a_seed_is_added_to_those_of_loadgen() -> None:
    rules = MlperfRules(seeds=MlperfSeeds(2085463073848966843, 2747215439041700206, 16159082839903944939))
    other = schedule(rate=1000.0, queries=50, seed=3)
    assert other.digest == schedule(rate=1000.0, queries=50, mlperf=rules).digest
    assert other.digest != schedule(rate=1000.0, queries=50).digest


def test_streams_have_the_samples_of_loadgen_and_their_neighbours() -> None:
    single = schedule(scenario=ScenarioName.SINGLE_STREAM, queries=300)
    assert single.sample[:8].tolist() == [89, 7, 21, 34, 94, 42, 42, 105]
    multi = schedule(scenario=ScenarioName.MULTI_STREAM, queries=4, samples_per_query=8)
    # The loaded set begins with these; every query takes successive ones.
    assert multi.sample[:9].tolist() == [6, 0, 32, 109, 106, 29, 81, 13, 30]
    assert multi.group == 8
    assert len(multi) == 32


def test_offline_takes_the_loaded_set_over_and_over() -> None:
    made = schedule(scenario=ScenarioName.OFFLINE, queries=300, warmup_s=0.0)
    assert made.sample[:8].tolist() == [1, 5, 112, 64, 11, 37, 58, 70]
    assert made.sample[128:256].tolist() == made.sample[:128].tolist()


@pytest.mark.parametrize(
    "scenario", [ScenarioName.SERVER, ScenarioName.OFFLINE, ScenarioName.SINGLE_STREAM, ScenarioName.MULTI_STREAM]
)
def test_accuracy_mode_has_each_sample_of_each_set(scenario: ScenarioName) -> None:
    rate = 100.0 if scenario is ScenarioName.SERVER else 0.0
    rules = MlperfRules(set_size=40)
    made = schedule(100, scenario=scenario, rate=rate, each_once=True, mlperf=rules, warmup_s=0.0)
    assert sorted(set(made.sample.tolist())) == list(range(100))
    assert len(made) == ((5 + 5 + 3) * 8 if scenario is ScenarioName.MULTI_STREAM else 100)
    assert (made.due_ns[1:] >= made.due_ns[:-1]).all()


def test_one_sample_may_be_sent_over_and_over() -> None:
    rules = MlperfRules(choice=SampleChoice.SAME, place=2)
    assert set(schedule(rate=1000.0, queries=20, mlperf=rules).sample.tolist()) == {112}
    with pytest.raises(ConfigError, match="performance_issue_same_index: expected at most 127, got 128"):
        schedule(rate=1000.0, queries=20, mlperf=MlperfRules(choice=SampleChoice.SAME, place=128))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0, "duration_s": 1.0}, "--rate: expected a number above 0"),
        ({"rate": 10.0}, "no end; expected --duration, --queries, or both"),
        ({"rate": 1e6, "duration_s": 100.0}, "expected at most 10000000 queries"),
        ({"scenario": ScenarioName.JOBS, "rate": 10.0, "queries": 3}, "--arrivals mlperf: requires --scenario server"),
        ({"scenario": ScenarioName.CONCURRENCY, "queries": 3}, "--arrivals mlperf: requires --scenario server"),
    ],
)
def test_what_loadgen_cannot_do_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule(**settings)
