import json
from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.mlperf.logs import ACCURACY, DETAIL, SUMMARY
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds, performance_set
from tests.support.loadgen.v2_server import server
from tests.unit.loadgen.mlperf.published_rules import PublishedLog, summary_score
from tests.unit.loadgen.simulated_server import write_simulation

RUN = ["run", "--model", "small", "--warmup", "0", "--seed", "1"]


@pytest.mark.parametrize(
    ("scenario", "options", "name"),
    [
        ("server", ["--rate", "20", "--slo-ms", "100", "--queries", "1000"], "Server"),
        ("offline", ["--queries", "1000"], "Offline"),
        ("single-stream", ["--queries", "200"], "SingleStream"),
        ("multi-stream", ["--queries", "700", "--samples-per-query", "3"], "MultiStream"),
    ],
)
def test_a_run_of_each_scenario_is_logged_with_the_score_of_its_report(
    scenario: str, options: list[str], name: str, tmp_path: Path
) -> None:
    report, folder = tmp_path / "report.json", tmp_path / "new" / "logs"
    arguments = ["--target", write_simulation(tmp_path), "--scenario", scenario, *options]
    assert main([*RUN, *arguments, "--json", str(report), "--mlperf-logs", str(folder)]) == 0
    detail = PublishedLog(folder / DETAIL)
    assert detail.values["effective_scenario"] == name
    assert detail.values["result_validity"] == "VALID"
    figure = json.loads(report.read_text())["score"]["figures"][0]
    scale = 1e6 if figure["unit"] == "ms" else 1
    assert detail.score == pytest.approx(figure["value"] * scale, rel=1e-3)
    assert summary_score(folder / SUMMARY)[0] == name
    # A simulated run happens at no time of day.
    assert "test_datetime" not in detail.values
    assert (folder / ACCURACY).read_text() == "[\n]\n"


def test_a_result_folder_has_the_logs_of_a_scenario_that_mlperf_has(tmp_path: Path) -> None:
    target = write_simulation(tmp_path)
    main([*RUN, "--target", target, "--rate", "20", "--queries", "500", "--out", str(tmp_path / "server")])
    assert PublishedLog(tmp_path / "server" / DETAIL).values["result_query_count"] == 500
    loop = ["--scenario", "concurrency", "--queries", "500"]
    main([*RUN, "--target", target, *loop, "--out", str(tmp_path / "loop")])
    assert (tmp_path / "loop" / "result.json").is_file()
    assert not (tmp_path / "loop" / DETAIL).exists()


def test_a_scenario_that_mlperf_does_not_have_is_not_run_for_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--target", write_simulation(tmp_path), "--scenario", "concurrency", "--queries", "500"]
    assert main([*RUN, *arguments, "--mlperf-logs", str(tmp_path / "logs")]) == 1
    assert "MLPerf has no scenario concurrency" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_the_seeds_and_the_loaded_set_of_loadgens_queries_are_logged(tmp_path: Path) -> None:
    arguments = ["--target", write_simulation(tmp_path), "--arrivals", "mlperf", "--rate", "20", "--duration", "30"]
    main([*RUN, *arguments, "--slo-ms", "100", "--mlperf-logs", str(tmp_path / "logs")])
    values = PublishedLog(tmp_path / "logs" / DETAIL).values
    # `--seed 1` is added to the official seeds.
    assert values["effective_qsl_rng_seed"] == 2085463073848966841
    assert values["effective_schedule_rng_seed"] == 16159082839903944937
    assert values["effective_min_duration_ms"] == 30000
    assert values["result_min_duration_met"] is True
    # Sixty-four random samples, in LoadGen's order.
    rules = MlperfRules(seeds=MlperfSeeds(qsl=2085463073848966841))
    assert values["loaded_qsl_set"] == performance_set(64, rules).tolist()


def test_the_loaded_set_of_a_multi_stream_run_ends_with_a_copy_of_its_beginning(tmp_path: Path) -> None:
    arguments = ["--target", write_simulation(tmp_path), "--arrivals", "mlperf", "--scenario", "multi-stream"]
    main([*RUN, *arguments, "--queries", "10", "--mlperf-logs", str(tmp_path / "logs")])
    loaded = PublishedLog(tmp_path / "logs" / DETAIL).values["loaded_qsl_set"]
    assert len(loaded) == 64 + 7
    assert loaded[64:] == loaded[:7]


def test_accuracy_mode_logs_the_sets_that_loadgen_would_load_one_after_the_other(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.zeros((20, 2), np.float32))
    (tmp_path / "user.conf").write_text("*.*.performance_sample_count_override = 8\n")
    arguments = ["--target", write_simulation(tmp_path), "--model", "small", "--samples", str(tmp_path / "samples.npz")]
    arguments += ["--user-conf", str(tmp_path / "user.conf"), "--scenario", "offline", "--mode", "accuracy"]
    main(["run", *arguments, "--mlperf-logs", str(tmp_path / "logs")])
    messages = PublishedLog(tmp_path / "logs" / DETAIL).messages
    # What LoadGen 6.0.17 logs for 20 samples, 8 of which fit.
    assert [each["value"] for each in messages if each["key"] == "loaded_qsl_set"] == [
        [1, 5, 13, 10, 11, 19, 12, 2],
        [15, 4, 17, 0, 14, 18, 3, 9],
        [16, 6, 7, 8],
    ]


def test_queries_of_which_the_client_gave_up_a_sample_are_not_in_the_logs(tmp_path: Path) -> None:
    arguments = ["--target", write_simulation(tmp_path), "--scenario", "multi-stream", "--queries", "100"]
    main([*RUN, *arguments, "--cancel", "5%@0", "--mlperf-logs", str(tmp_path / "logs")])
    values = PublishedLog(tmp_path / "logs" / DETAIL).values
    # Eight samples a query: two thirds have none that is given up.
    assert 50 < values["result_query_count"] < 80
    # They are sent together, and answered one after the other, each within 10 ms of the one before.
    assert values["result_min_query_latency_ns"] == 80_000_000


def test_accuracy_mode_logs_the_bytes_of_every_answer(tmp_path: Path) -> None:
    with server() as target:
        arguments = ["--target", target, "--model", "m", "--scenario", "offline", "--mode", "accuracy"]
        main(["run", *arguments, "--mlperf-logs", str(tmp_path)])
    answers = json.loads((tmp_path / ACCURACY).read_text())
    assert sorted(each["qsl_idx"] for each in answers) == list(range(64))
    # The server answers 0.25 and 0.75.
    assert {each["data"] for each in answers} == {"0000803E0000403F"}
