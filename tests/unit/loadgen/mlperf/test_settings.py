from pathlib import Path

import pytest

from sluice.loadgen.mlperf.settings import NAMES, ConfKind, ConfSettings, read_settings
from sluice.loadgen.records.outputs import KeptOutputs
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds, SampleChoice
from sluice.models.errors import ConfigError

PLAIN = {"arrivals": "mlperf", "mlperf_rules": MlperfRules(), "warmup": 0.0, "kept_outputs": None}


def settings(
    folder: Path,
    user: str = "",
    *,
    mlperf: str = "",
    audit: str = "",
    model: str = "resnet50",
    scenario: ScenarioName = ScenarioName.SERVER,
) -> ConfSettings:
    files = []
    for kind, text in ((ConfKind.AUDIT, audit), (ConfKind.USER, user), (ConfKind.MLPERF, mlperf)):
        if text:
            path = folder / f"{kind.name.lower()}.conf"
            path.write_text(text)
            files.append((kind, str(path)))
    return read_settings(files, model, scenario)


def test_keys_become_options_in_their_units(tmp_path: Path) -> None:
    text = """
# The Server scenario of one model.
*.Server.target_qps = 1000.5
resnet50.Server.target_latency = 15
*.Server.target_latency_percentile = 99
*.*.min_duration = 600000
*.*.max_duration = 900000
*.Server.min_query_count = 0x10
*.Server.max_query_count = 020
*.Server.max_async_queries = 32
*.MultiStream.samples_per_query = 4
"""
    assert settings(tmp_path, text).defaults == PLAIN | {
        "rate": 1000.5,
        "slo_ms": 15,
        "percentile": 99,
        "min_duration": 600.0,
        "duration": 900.0,
        "min_queries": 16,
        "queries": 16,
        "max_outstanding": 32,
    }


def test_a_scenario_has_its_own_keys(tmp_path: Path) -> None:
    text = "*.*.target_qps = 7\n*.*.target_latency = 3\n*.*.samples_per_query = 4\n*.*.target_latency_percentile = 90\n"
    found = {name: settings(tmp_path, text, scenario=name).defaults for name in NAMES}
    assert found == {
        ScenarioName.SERVER: PLAIN | {"rate": 7, "slo_ms": 3, "percentile": 90},
        ScenarioName.OFFLINE: PLAIN | {"expected_rate": 7},
        ScenarioName.SINGLE_STREAM: PLAIN | {"expected_latency_ms": 3, "percentile": 90},
        ScenarioName.MULTI_STREAM: PLAIN | {"expected_latency_ms": 3, "percentile": 90, "samples_per_query": 4},
    }


def test_the_closest_line_of_a_file_counts(tmp_path: Path) -> None:
    lines = [
        "wan-2.2.Server.target_qps = 1",
        "*.Server.target_qps = 2",
        "wan-2.2.*.target_qps = 3",
        "*.*.target_qps = 4",
    ]
    texts = ["\n".join(reversed(lines[first:])) for first in range(4)]
    rates = [settings(tmp_path, text, model="wan-2.2").defaults["rate"] for text in texts]
    assert rates == [1, 2, 3, 4]


def test_a_later_kind_of_file_overrides_an_earlier_one(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        "*.*.target_qps = 2\n*.*.min_query_count = 0\n",
        mlperf="resnet50.Server.target_qps = 1\nresnet50.Server.min_query_count = 5\n*.*.max_query_count = 7\n",
        audit="*.*.performance_issue_same = 1\n*.*.performance_issue_same_index = 3\n*.*.mode = 2\n",
    )
    rules = MlperfRules(choice=SampleChoice.SAME, place=3)
    assert found.defaults == PLAIN | {"rate": 2, "queries": 7, "mlperf_rules": rules, "each_once": False}


def test_seeds_come_from_the_first_file_only(tmp_path: Path) -> None:
    seeds = "*.*.qsl_rng_seed = 1\n*.*.sample_index_rng_seed = 2\n*.*.schedule_rng_seed = 18446744073709551615\n"
    found = settings(tmp_path, seeds, mlperf=seeds.replace("= 1\n", "= 9\n"))
    assert found.defaults["mlperf_rules"] == MlperfRules(seeds=MlperfSeeds(9, 2, 18446744073709551615))
    place = tmp_path / "user.conf"
    assert found.notes == [
        f"{place}:{line}: {key}: ignored, as by LoadGen; it counts in --mlperf-conf only"
        for line, key in enumerate(("qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed"), 1)
    ]


def test_the_seeds_of_the_fifth_test_replace_the_others(tmp_path: Path) -> None:
    text = "*.*.test05 = 1\n*.*.qsl_rng_seed = 1\n*.*.test05_qsl_rng_seed = 7975553102935885558\n"
    rules = settings(tmp_path, mlperf=text).defaults["mlperf_rules"]
    assert isinstance(rules, MlperfRules)
    assert rules.seeds.qsl == 7975553102935885558


@pytest.mark.parametrize(
    ("mlperf", "audit", "scenario", "share"),
    [
        # 64 of the queries that a rate gives in the least duration, or of the least number of them.
        ("*.*.target_qps = 100\n*.*.min_duration = 60000", "64", ScenarioName.SERVER, 64 / 6000),
        ("*.*.target_qps = 100\n*.*.min_duration = 60000", "64", ScenarioName.OFFLINE, 64 / 6600),
        ("*.*.target_latency = 2\n*.*.min_duration = 60000", "64", ScenarioName.SINGLE_STREAM, 64 / 30000),
        ("*.*.target_latency = 2\n*.*.min_query_count = 662", "64", ScenarioName.MULTI_STREAM, 64 / 40000),
        ("*.*.min_query_count = 32", "64", ScenarioName.SERVER, 1.0),
        ("*.*.accuracy_log_probability = 10", "0", ScenarioName.SERVER, 0.1),
    ],
)
def test_a_share_of_the_answers_is_logged(
    tmp_path: Path, mlperf: str, audit: str, scenario: ScenarioName, share: float
) -> None:
    audit = f"*.*.accuracy_log_rng_seed = 720381539243781796\n*.*.accuracy_log_sampling_target = {audit}\n"
    found = settings(tmp_path, mlperf=mlperf, audit=audit, scenario=scenario).defaults["kept_outputs"]
    assert isinstance(found, KeptOutputs)
    assert found.share == pytest.approx(share)
    assert found.seed == 720381539243781796


@pytest.mark.parametrize(
    ("key", "choice"),
    [
        ("performance_issue_unique", SampleChoice.UNIQUE),
        ("performance_issue_same", SampleChoice.SAME),
        ("sample_concatenate_permutation", SampleChoice.PERMUTATIONS),
    ],
)
def test_switches_choose_the_samples(tmp_path: Path, key: str, choice: SampleChoice) -> None:
    text = f"*.*.{key} = 1\n*.*.performance_sample_count_override = 1024\n*.*.accuracy_sample_count_override = 99\n"
    rules = MlperfRules(choice=choice, set_size=1024, accuracy_samples=99)
    assert settings(tmp_path, text).defaults["mlperf_rules"] == rules


@pytest.mark.parametrize("mode", [("1", True), ("2", False)])
def test_a_mode_is_that_of_the_run(tmp_path: Path, mode: tuple[str, bool]) -> None:
    assert settings(tmp_path, f"*.*.mode = {mode[0]}").defaults["each_once"] is mode[1]


def test_other_models_may_have_what_this_run_cannot_follow(tmp_path: Path) -> None:
    text = "llama2-70b.*.use_token_latencies = 1\n*.Server.target_duration = 0\n*.Server.coalesce_queries = 0\n"
    assert settings(tmp_path, mlperf=text).defaults == PLAIN


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("*.Server.target_qsp = 3", ": target_qsp: not a key of LoadGen; did you mean 'target_qps'?"),
        (
            "*.server.target_qps = 3",
            ": expected scenario *, Server, Offline, SingleStream, MultiStream; got 'server'",
        ),
        ("target_qps = 3", ": expected model.scenario.key, got 'target_qps'"),
        ("*.Server.target_qps=3", ": expected 'model.scenario.key = value' with spaces, got '*.Server.target_qps=3'"),
        ("*.Server.target_qps = 3 # fast", ": expected 'model.scenario.key = value' with spaces"),
        ("*.Server.target_qps = fast", ": target_qps: expected a number of at least 0, got 'fast'"),
        ("*.Server.target_qps = inf", ": target_qps: expected a number of at least 0, got 'inf'"),
        ("*.Server.min_duration = 1.5", ": min_duration: expected a whole number from 0 to 2"),
        ("*.Server.min_duration = -1", ": min_duration: expected a whole number from 0 to 2"),
        ("*.*.qsl_rng_seed = 18446744073709551616", ": qsl_rng_seed: expected a whole number"),
        (
            "*.Server.target_latency_percentile = 100",
            ": target_latency_percentile: expected a percentage above 0 and",
        ),
        ("*.*.performance_issue_same = 2", ": performance_issue_same: expected 0 or 1, got '2'"),
        ("*.*.mode = 4", ": mode: expected 0, 1, 2 or 3, got '4'"),
        ("*.*.mode = 0", ": mode: expected 1 (accuracy) or 2 (performance), got 0; make a run of each"),
        (
            "*.*.mode = 3",
            ": mode: expected 1 (accuracy) or 2 (performance), got 3; loadgen find-max finds",
        ),
        ("*.Server.coalesce_queries = 1", ": coalesce_queries: expected 0; every query is a request of its own"),
        ("*.*.use_token_latencies = 1", ": use_token_latencies: for language models only"),
        ("*.Server.ttft_latency = 450", ": ttft_latency: for language models only"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, f"# first\n{line}\n")
    assert f"user.conf:2{message}" in str(caught.value)


def test_choices_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    text = "*.*.performance_issue_unique = 1\n*.*.performance_issue_same = 1\n"
    with pytest.raises(ConfigError, match=r"user.conf:2: performance_issue_same: excludes .*user.conf:1"):
        settings(tmp_path, text)


def test_files_need_a_scenario_of_mlperf(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--user-conf: expected --scenario server, offline.* got jobs"):
        settings(tmp_path, "*.*.mode = 2", scenario=ScenarioName.JOBS)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.conf: cannot be read: .*No such file"):
        read_settings([(ConfKind.USER, str(tmp_path / "none.conf"))], "m", ScenarioName.SERVER)
    (tmp_path / "bytes.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes.conf: cannot be read"):
        read_settings([(ConfKind.USER, str(tmp_path / "bytes.conf"))], "m", ScenarioName.SERVER)
