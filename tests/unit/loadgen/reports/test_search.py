import dataclasses
import json
from pathlib import Path

import msgspec
import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.reports.search import StoredProbes, max_rate_json, max_rate_text, probe_json, probe_text
from sluice.loadgen.run.find_max import MaxRate, Probe, ProbePlan, SearchSettings
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.unit.loadgen.results import result_of
from tests.unit.loadgen.simulated_server import write_simulation

CONFIG = RunConfig(target="http://t", model="m", rate=100, slo_ms=10, warmup_s=0, headers=(("x-key", "secret"),))


def result(rate: float, number: int = 0, latency_ms: int = 10, late_ms: int = 0, queries: int = 500) -> RunResult:
    config = msgspec.structs.replace(CONFIG, rate=rate, seed=number)
    return result_of(config, latency_ms, queries, late_ms=late_ms)


def probe(made: RunResult, confirms: bool = False) -> Probe:
    return Probe.of(made, confirms)


def test_the_line_of_a_probe() -> None:
    lines = [
        probe_text(probe(result(100.0, 7))),
        probe_text(probe(result(200.0, 8, latency_ms=11))),
        probe_text(probe(result(150.0, 9), confirms=True)),
        probe_text(probe(result(400.0, 10, latency_ms=11, late_ms=5))),
    ]
    assert lines == [
        "       100.0/s  search   met by 100.000 % of 500        p99 10.000 ms  seed 7  pass\n",
        "       200.0/s  search   met by   0.000 % of 500        p99 11.000 ms  seed 8  missed\n",
        "       150.0/s  confirm  met by 100.000 % of 500        p99 10.000 ms  seed 9  pass\n",
        "       400.0/s  search   met by   0.000 % of 500        p99 11.000 ms  seed 10  limited by the client: it was "
        "5.00 ms late or more with 1 % of the queries, 1 ms is allowed; "
        "try a lower --rate, a core of its own for the client, or more --procs\n",
    ]


def test_the_line_of_a_missed_probe_says_how_many_queries_waited() -> None:
    missed = probe(result(100.0, latency_ms=11))
    waiting = msgspec.structs.replace(missed, metrics=msgspec.structs.replace(missed.metrics, waited=70))
    assert probe_text(waiting).endswith("missed; 70 queries waited for a connection\n")


@pytest.mark.parametrize(
    ("rate", "failed", "confirmed", "text"),
    [
        (10.0, 11.0, True, "10.0/s within the objective, confirmed on two more seeds; 11.0/s failed (1 probes)"),
        (
            10.0,
            None,
            True,
            "10.0/s within the objective, confirmed on two more seeds; "
            "no rate failed: the real maximum is higher (1 probes)",
        ),
        (
            10.0,
            11.0,
            False,
            "10.0/s within the objective once, but not confirmed: try more --max-probes; 11.0/s failed (1 probes)",
        ),
        (None, 11.0, False, "no rate met the objective (1 probes)"),
    ],
)
def test_the_result_of_a_search(rate: float | None, failed: float | None, confirmed: bool, text: str) -> None:
    found = MaxRate(rate, failed, confirmed, (probe(result(50.0)),))
    assert max_rate_text(found, 0.1) == f"Result: {text}\n"


def test_runs_too_short_for_the_precision_are_named_with_what_they_tell_apart() -> None:
    found = MaxRate(10.0, 11.0, True, (probe(result(10.0, queries=500), confirms=True),))
    note = (
        "Note: 500 Poisson arrivals, as in a run that confirms the rate, tell rates apart that differ by 10 %; "
        "a longer --duration has more\n"
    )
    assert max_rate_text(found, 0.05).startswith(note)
    assert "Note" not in max_rate_text(found, 0.06)


def test_a_limit_of_the_client_is_not_called_the_targets() -> None:
    limited = probe(result(400.0, latency_ms=11, late_ms=5))
    text = max_rate_text(MaxRate(282.8, 400.0, True, (limited,)), 0.1)
    assert "; 400.0/s exceeded the client's capacity, the real maximum may be higher (1 probes)" in text
    assert max_rate_text(MaxRate(None, 400.0, False, (limited,)), 0.1).startswith(
        "Result: no rate met the objective; 400.0/s exceeded the client's capacity: limited by the client: it was 5.00"
    )


def test_a_search_of_runs_that_are_too_short_says_how_long_they_have_to_be() -> None:
    short = probe(result(100.0, queries=458))
    assert max_rate_text(MaxRate(None, 100.0, False, (short,)), 0.1) == (
        "Result: no rate met the objective; at 100.0/s too short: 458 queries after the warm-up; "
        "a claim about 99 % needs 459; try --duration 1 or more, or a higher --start (1 probes)\n"
    )


def test_a_search_whose_higher_rates_missed_does_not_advise_a_higher_start() -> None:
    missed, short = probe(result(200.0, latency_ms=11)), probe(result(100.0, queries=458, latency_ms=11))
    assert missed.verdict is Verdict.MISSED
    assert max_rate_text(MaxRate(None, 100.0, False, (missed, short)), 0.1).endswith("or more (2 probes)\n")


def write_search(path: Path, results: list[RunResult], settings: SearchSettings, confirms: int = 0) -> None:
    probes = [probe(each, number >= len(results) - confirms) for number, each in enumerate(results)]
    reports = [probe_json(each, made) for each, made in zip(results, probes, strict=True)]
    path.write_bytes(max_rate_json(MaxRate(None, None, False, tuple(probes)), settings, reports))


def test_stored_probes_give_the_same_answers_again(tmp_path: Path) -> None:
    file, settings = tmp_path / "peak.json", SearchSettings()
    made = [result(100.0, 0), result(200.0, 1, latency_ms=11)]
    write_search(file, made, settings)
    stored = StoredProbes(file, settings, CONFIG)
    for number, each in enumerate(made):
        found = stored.get(ProbePlan(number, each.config.rate, confirms=False))
        assert found is not None
        assert found[0] == probe(each)
        assert json.loads(found[1])["config"]["rate"] == each.config.rate
    assert stored.get(ProbePlan(2, 141.0, confirms=False)) is None


def test_stored_probes_of_no_use_to_the_search_are_left_out(tmp_path: Path) -> None:
    file, settings = tmp_path / "peak.json", SearchSettings(max_probes=4)
    write_search(file, [result(100.0, 0), result(200.0, 1), result(200.0, 2)], settings, confirms=1)
    longer = StoredProbes(file, SearchSettings(max_probes=40), CONFIG)
    assert longer.get(ProbePlan(0, 100.0, confirms=False)) is not None
    assert longer.get(ProbePlan(1, 200.0, confirms=False)) is not None
    assert longer.get(ProbePlan(2, 400.0, confirms=False)) is None


def test_a_probe_that_was_interrupted_is_run_again(tmp_path: Path) -> None:
    file, settings = tmp_path / "peak.json", SearchSettings()
    cut = dataclasses.replace(result(200.0, 1), interrupted=True, invalid=["interrupted before its end"])
    write_search(file, [result(100.0, 0), cut], settings)
    stored = StoredProbes(file, settings, CONFIG)
    assert stored.get(ProbePlan(0, 100.0, confirms=False)) is not None
    assert stored.get(ProbePlan(1, 200.0, confirms=False)) is None


@pytest.mark.parametrize(
    ("settings", "config", "difference"),
    [
        (SearchSettings(precision=0.01), CONFIG, "precision was 0.02, and is 0.01 now"),
        (SearchSettings(start=50.0), CONFIG, "start was 100.0, and is 50.0 now"),
        (SearchSettings(), msgspec.structs.replace(CONFIG, slo_ms=20), "slo_ms was 10, and is 20"),
        (SearchSettings(), msgspec.structs.replace(CONFIG, target="http://u"), "target was 'http://t'"),
        (SearchSettings(), msgspec.structs.replace(CONFIG, seed=5), "seed was 0, and is 5 now"),
    ],
)
def test_another_search_is_not_resumed(
    settings: SearchSettings, config: RunConfig, difference: str, tmp_path: Path
) -> None:
    file = tmp_path / "peak.json"
    write_search(file, [result(100.0)], SearchSettings())
    with pytest.raises(ConfigError, match=f"^--resume {file}: is of another search: {difference}"):
        StoredProbes(file, settings, config)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"kind": "run", "settings": {}, "probes": []}', "\xff"])
def test_a_file_that_is_no_search_is_not_resumed(content: str, tmp_path: Path) -> None:
    file = tmp_path / "peak.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"^--resume {file}: expected the report of find-max --json"):
        StoredProbes(file, SearchSettings(), CONFIG)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        StoredProbes(tmp_path / "absent.json", SearchSettings(), CONFIG)


def test_a_search_that_was_cut_short_goes_on_to_the_same_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, whole, resumed = (tmp_path / name for name in ("cut.json", "whole.json", "resumed.json"))
    search = ["find-max", "--target", write_simulation(tmp_path), "--model", "small", "--slo-ms", "100"]
    search += ["--start", "40", "--precision", "20", "--duration", "15"]
    assert main([*search, "--json", str(whole)]) == 0
    content = json.loads(whole.read_text())
    # As it was after the third probe.
    cut.write_text(json.dumps(content | {"rate": None, "probes": content["probes"][:3]}))
    before = capsys.readouterr().out
    assert main([*search, "--resume", str(cut), "--json", str(resumed)]) == 0
    assert capsys.readouterr().out == before
    again = json.loads(resumed.read_text())
    assert [probe["metrics"] for probe in again["probes"]] == [probe["metrics"] for probe in content["probes"]]
    assert {key: again[key] for key in ("rate", "failed_rate", "confirmed")} == {
        key: content[key] for key in ("rate", "failed_rate", "confirmed")
    }
