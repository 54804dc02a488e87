"""`loadgen mlperf`: MLPerf's own LoadGen against small servers."""

import asyncio
import importlib.util
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.models.processes import process_tree
from tests.support.loadgen.v2_server import ANSWER, BUSY, TENSOR, Reply, answer, server

SHORT = ["--model", "m", "--min-duration", "0.3", "--percentile", "90", "--slo-ms", "60000"]

AT_ONCE = """
from sluice.models.tensors.spec import DataType, TensorSpec

class Server:
    async def start(self): ...
    async def stop(self): ...
    def metadata(self, model): return [[TensorSpec(name, DataType.FP32, (-1, 2))] for name in "xy"]
    def prepare(self, model, tensors, parameters): return tensors["x"]
    def submit(self, request, done, explain): done("ok", {"y": request}, "", "")
    def cancel(self, call): ...
"""


def loadgen(reply: Reply, folder: Path, *options: str) -> int:
    with server(reply) as url:
        return main(["mlperf", "--target", url, *SHORT, "--out", str(folder / "logs"), *options])


def children() -> list[int]:
    own = os.getpid()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process_tree(own) if pid != own}
    return [pid for pid, command in commands.items() if b"sluice.loadgen.mlperf.engine_child" in command]


def test_loadgen_drives_the_target_and_its_verdict_is_that_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loadgen(answer, tmp_path, "--rate", "400") == 0
    assert "Result is : VALID" in capsys.readouterr().out
    detail = (tmp_path / "logs" / "mlperf_log_detail.txt").read_text()
    config = RunConfig(target="", model="m", rate=400.0, duration_s=0.3, arrivals=Arrivals(ArrivalProcess.MLPERF))
    queries = len(SCENARIOS[config.scenario].schedule(config, 64))
    assert f'"result_query_count", "value": {queries},' in detail
    assert children() == []


def test_accuracy_mode_logs_the_answer_to_each_sample(tmp_path: Path) -> None:
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.zeros((30, 2), np.float32))
    assert loadgen(answer, tmp_path, "--scenario", "offline", "--mode", "accuracy", "--samples", str(samples)) == 0
    log = json.loads((tmp_path / "logs" / "mlperf_log_accuracy.json").read_text())
    assert sorted(entry["qsl_idx"] for entry in log) == list(range(30))
    assert {entry["data"] for entry in log} == {TENSOR.hex().upper()}


def test_a_share_of_the_answers_is_logged_in_performance_mode(tmp_path: Path) -> None:
    audit = tmp_path / "audit.config"
    audit.write_text("*.*.accuracy_log_rng_seed = 7\n*.*.accuracy_log_sampling_target = 20\n*.*.min_query_count = 60\n")
    mlperf = tmp_path / "mlperf.conf"
    mlperf.write_text("*.*.min_duration = 300\n*.Server.target_qps = 400\n")
    conf = ["--mlperf-conf", str(mlperf), "--audit-conf", str(audit)]
    assert loadgen(answer, tmp_path, *conf) == 0
    log = json.loads((tmp_path / "logs" / "mlperf_log_accuracy.json").read_text())
    with server(answer) as url:
        main(["run", "--target", url, *SHORT, *conf, "--mlperf-logs", str(tmp_path / "own")])
    # LoadGen logs in the order of the answers.
    own = json.loads((tmp_path / "own" / "mlperf_log_accuracy.json").read_text())
    assert own == sorted(log, key=lambda entry: entry["seq_id"])
    assert 5 <= len(log) < 60


def test_a_target_that_answers_at_once_is_given_all_samples_of_an_offline_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "at_once.py").write_text(AT_ONCE)
    monkeypatch.chdir(tmp_path)
    options = ["--scenario", "offline", "--min-queries", "3000", "--out", str(tmp_path / "logs")]
    target = ["--target", "inproc:at_once:Server", "--model", "m", "--min-duration", "0"]
    assert main(["mlperf", *target, *options]) == 0
    assert '"result_query_count", "value": 1,' in (tmp_path / "logs" / "mlperf_log_detail.txt").read_text()


def test_too_few_queries_for_a_verdict_are_an_invalid_run(tmp_path: Path) -> None:
    assert loadgen(answer, tmp_path, "--rate", "400", "--percentile", "99.9") == 4


def test_a_slow_target_misses_the_objective(tmp_path: Path) -> None:
    assert loadgen(answer, tmp_path, "--rate", "400", "--slo-ms", "0.001") == 2


def test_a_lost_answer_ends_the_run_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def lose_one(number: int, writer: asyncio.StreamWriter) -> None:
        if number != 20:
            writer.write(ANSWER)

    assert loadgen(lose_one, tmp_path, "--rate", "400", "--drain-timeout", "0.5") == 4
    assert "had no answer for 0.5 s; LoadGen would wait for ever" in capsys.readouterr().out
    assert children() == []


def test_a_refusal_ends_the_run_since_loadgen_would_count_it_as_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse_one(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(BUSY if number == 20 else ANSWER)

    assert loadgen(refuse_one, tmp_path, "--rate", "400") == 4
    assert "has no answer (shed: HTTP 503:" in capsys.readouterr().out


def test_a_killed_loadgen_makes_the_run_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def kill(number: int, writer: asyncio.StreamWriter) -> None:
        for pid in children():
            os.kill(pid, signal.SIGKILL)

    assert loadgen(kill, tmp_path, "--rate", "400") == 4
    assert "Result: INVALID: the process of LoadGen ended with signal SIGKILL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "400", "--procs", "2"], "--procs: LoadGen does not have it"),
        (["--rate", "400", "--arrivals", "poisson"], "--arrivals: LoadGen does not have it"),
        (["--rate", "400", "--json", "report.json"], "--json: LoadGen reports in its log files"),
        (["--rate", "0"], "--rate: expected a number above 0, got 0"),
        (["--scenario", "jobs", "--rate", "1"], "--scenario: expected server, offline, single-stream, multi-stream"),
        (["--scenario", "offline", "--expected-rate", "0"], "--expected-rate: expected a number above 0"),
    ],
)
def test_what_loadgen_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    command = ["mlperf", "--target", "http://localhost:9", *SHORT, "--out", str(tmp_path / "logs")]
    assert main([*command, *options]) == 1
    assert message in capsys.readouterr().err


def test_a_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert loadgen(answer, tmp_path, "--rate", "400") == 1
    assert "expected `pip install 'sluice-gateway[mlperf]'`" in capsys.readouterr().err


def test_log_files_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine").touch()
    assert loadgen(answer, tmp_path, "--rate", "400") == 1
    assert "expected a folder that is new or empty" in capsys.readouterr().err
