"""Verdicts of the load generator on real servers: a slow target is not a slow client."""

import json
import sys
import threading
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from tests.support.loadgen.one_worker import one_worker_server
from tests.support.loadgen.v2_server import answer, server

PER_S = 200


@pytest.mark.timed
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_twice_the_load_of_a_server_that_never_refuses_is_missed(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    with one_worker_server(protocol, PER_S) as target:
        arguments = ["--target", target, "--model", "m", "--rate", "400", "--duration", "3", "--warmup", "0.5"]
        code = main(["run", *arguments, "--slo-ms", "200", "--connections", "32", "--json", str(report)])
    assert code == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith("Result: VALID, objective MISSED")
    content = json.loads(report.read_text())
    assert (content["verdict"], content["validity"]["reasons"]) == ("missed", [])
    assert content["metrics"]["completed_per_s"] < 1.05 * PER_S
    if protocol == "http":
        # Only 32 queries are with the server at a time; the wait of the others is the target's, not the client's.
        assert content["metrics"]["waited_for_connection_ms"]["p90"] > 500
        assert content["metrics"]["waited_for_connection_ms"] == content["metrics"]["waiting_ms"]
    assert content["metrics"]["lateness_ms"]["p99"] < 10
    assert 0 < content["client_cpu_share"] < 0.8
    assert content["baseline_lateness_ms"] > 0


@pytest.mark.timed
def test_find_max_finds_the_knee_of_a_server_that_never_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "peak.json"
    # Even arrivals, so that the knee is where the worker has no time left: at 200/s.
    arrivals = ["--arrivals", "gamma", "--cv", "0.1", "--start", "190"]
    bounds = ["--precision", "4", "--duration", "7", "--warmup", "0.3"]
    with one_worker_server("http", PER_S) as target:
        objective = ["--slo-ms", "150", "--percentile", "90"]
        code = main(
            ["find-max", "--target", target, "--model", "m", *arrivals, *bounds, *objective, "--json", str(report)]
        )
    output = capsys.readouterr().out
    peak = json.loads(report.read_text())
    assert code == 0, output
    assert peak["rate"] == pytest.approx(PER_S, rel=0.05), output
    assert peak["confirmed"] is True
    # What fails is over as soon as that is known, and what passes is as long as the precision takes.
    ended = [probe["decision"] for probe in peak["probes"] if not probe["confirms"]]
    assert "excluded" in ended
    assert "confirmed" in ended


@pytest.mark.timed
def test_a_client_without_a_core_of_its_own_is_invalid_and_not_the_targets_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            sum(range(1000))

    spinner = threading.Thread(target=spin)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.02)  # so long the spinning thread keeps the interpreter
    spinner.start()
    try:
        with server(answer) as target:
            arguments = ["--target", target, "--model", "m", "--rate", "200", "--duration", "3", "--warmup", "0"]
            code = main(["run", *arguments, "--slo-ms", "50"])
    finally:
        done.set()
        spinner.join()
        sys.setswitchinterval(interval_s)
    assert code == 4
    assert "Result: INVALID: limited by the client" in capsys.readouterr().out
