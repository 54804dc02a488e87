import msgspec
import numpy as np
import pytest

from sluice.loadgen.traffic.mlperf_schedule import (
    MlperfRules,
    SampleChoice,
    accuracy_samples,
    accuracy_sets,
    accuracy_times,
    closed_loop_samples,
    offline_samples,
    performance_set,
    server_samples,
    server_times,
)
from sluice.models.errors import ConfigError
from tests.support.loadgen.real_loadgen import observe

RULES = MlperfRules()


def test_the_official_seeds_give_the_published_server_run() -> None:
    loaded = performance_set(128, RULES)
    assert loaded[:8].tolist() == [1, 5, 112, 64, 11, 37, 58, 70]
    times = server_times(RULES, loaded, 1000.0, 3.0)
    assert len(times) == 3039
    assert times[-2] < 3_000_000_000 <= times[-1]
    assert server_samples(RULES, loaded, 3039)[:8].tolist() == [89, 7, 21, 34, 94, 42, 42, 105]


def test_what_loadgen_logs_as_the_duration_is_the_time_of_the_next_query() -> None:
    rules = MlperfRules(min_queries=3040)
    assert server_times(rules, performance_set(128, rules), 1000.0, 3.0)[-1] == 3_002_617_081


def test_a_fast_run_has_the_arrivals_of_loadgen_to_the_last() -> None:
    rules = MlperfRules(min_queries=800_608)
    times = server_times(rules, performance_set(128, rules), 200_000.0, 4.0)
    assert int(np.searchsorted(times, 4_000_000_000)) + 1 == 800_607
    assert times[-1] == 4_000_002_820


@pytest.mark.parametrize(
    ("rules", "settings"),
    [
        (RULES, {}),
        (MlperfRules(min_queries=3000), {"min_query_count": 3000, "min_duration_ms": 1}),
        (MlperfRules(choice=SampleChoice.UNIQUE), {"performance_issue_unique": True}),
        (
            MlperfRules(choice=SampleChoice.SAME, place=5),
            {"performance_issue_same": True, "performance_issue_same_index": 5},
        ),
        (MlperfRules(choice=SampleChoice.PERMUTATIONS), {"sample_concatenate_permutation": True}),
    ],
)
def test_server_runs_are_those_of_loadgen(rules: MlperfRules, settings: dict[str, object]) -> None:
    settings = {"server_target_qps": 20_000.0, "min_duration_ms": 100} | settings
    real = observe("Server", "PerformanceOnly", 97, 97, **settings)
    loaded = performance_set(97, rules)
    assert [loaded.tolist()] == real.sets
    times = server_times(rules, loaded, 20_000.0, 0.001 if rules.min_queries == 3000 else 0.1)
    assert times.tolist() == real.due_ns
    assert server_samples(rules, loaded, len(times)).tolist() == [sample for (sample,) in real.queries]
    further = server_times(msgspec.structs.replace(rules, min_queries=len(times) + 1), loaded, 20_000.0, 0.1)
    if rules.choice not in (SampleChoice.UNIQUE, SampleChoice.PERMUTATIONS):
        assert real.generated == [[len(times), further[-1]]]


@pytest.mark.parametrize(
    ("scenario", "rules", "settings"),
    [
        ("SingleStream", RULES, {}),
        ("SingleStream", MlperfRules(choice=SampleChoice.PERMUTATIONS), {"sample_concatenate_permutation": True}),
        ("MultiStream", MlperfRules(samples_per_query=8), {}),
        ("MultiStream", MlperfRules(samples_per_query=5, min_queries=333), {"multi_stream_samples_per_query": 5}),
        (
            "MultiStream",
            MlperfRules(samples_per_query=8, choice=SampleChoice.UNIQUE),
            {"performance_issue_unique": True},
        ),
    ],
)
def test_closed_loops_have_the_samples_of_loadgen(
    scenario: str, rules: MlperfRules, settings: dict[str, object]
) -> None:
    settings = {"min_duration_ms": 300, "min_query_count": rules.min_queries} | settings
    real = observe(scenario, "PerformanceOnly", 97, 97, **settings)
    loaded = performance_set(97, rules)
    assert [loaded.tolist()] == real.sets
    assert closed_loop_samples(rules, loaded, len(real.queries)).tolist() == real.queries


@pytest.mark.parametrize(
    ("rules", "settings"),
    [
        (RULES, {}),
        (MlperfRules(min_queries=5000), {"min_query_count": 5000}),
        (MlperfRules(choice=SampleChoice.PERMUTATIONS), {"sample_concatenate_permutation": True}),
    ],
)
def test_offline_runs_have_the_samples_of_loadgen(rules: MlperfRules, settings: dict[str, object]) -> None:
    settings = {"offline_expected_qps": 1000.0, "min_duration_ms": 3000} | settings
    real = observe("Offline", "PerformanceOnly", 97, 97, **settings)
    loaded = performance_set(97, rules)
    assert [loaded.tolist()] == real.sets
    # LoadGen takes 10 % more samples than the expected rate gives in the least duration.
    assert len(real.queries[0]) >= max(3300, rules.min_queries)
    assert [offline_samples(rules, loaded, len(real.queries[0])).tolist()] == real.queries


@pytest.mark.parametrize("scenario", ["Server", "SingleStream", "MultiStream", "Offline"])
def test_accuracy_mode_has_the_sets_and_the_order_of_loadgen(scenario: str) -> None:
    real = observe(scenario, "AccuracyOnly", 100, 33, server_target_qps=2000.0)
    rules = MlperfRules(set_size=33, samples_per_query=8 if scenario == "MultiStream" else 1)
    sets = accuracy_sets(100, rules)
    assert [each.tolist() for each in sets] == real.sets
    if scenario == "Offline":
        assert real.queries == real.sets
    else:
        assert [query for each in sets for query in accuracy_samples(rules, each).tolist()] == real.queries
    if scenario == "Server":
        times = accuracy_times(rules, sets, 2000.0)
        ends = np.cumsum([len(each) for each in sets])[:-1]
        assert [(part - part[0]).tolist() for part in np.split(times, ends)] == [
            (part - part[0]).tolist() for part in np.split(np.array(real.due_ns), ends)
        ]
        assert [times[end] - times[end - len(each)] for end, each in zip(ends, sets, strict=False)] == [
            duration for _, duration in real.generated[:-1]
        ]


def test_a_schedule_that_would_not_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="schedule: too long; expected at most 20000000 queries at 1e"):
        server_times(RULES, performance_set(8, RULES), 1e9, 60.0)
