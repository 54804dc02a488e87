"""Serves the digits pipelines and sends labelled traffic to them: `python -m examples.digits.demo`.

The exit status is 1 unless every request got exactly one answer and the accuracies are the known ones.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from examples.digits.build import DATA, build_repository
from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.run import runner
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ServingError
from sluice.models.text_table import table_lines

DIRECTORY = Path(".demo")

KNOWN_CORRECT = {"digits-cascade": 888, "digits-ensemble": 889}
"""Correct answers of each pipeline among the 899 test rows."""

_COLUMNS = (
    *("pipeline", "over", "requests", "accuracy", "escalated", "p50 ms", "p99 ms"),
    *("goodput/s", "attainment", "mean batch"),
)

OBJECTIVE_MS = 50
RATE_PER_S = 300
ROUNDS = 20
EXPECTED_ATTAINMENT = 0.99
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 80

NEXT_STEPS = """Every request got exactly one answer, and the accuracies are the expected ones. To try it yourself:

  .venv-demo/bin/sluice serve --repository .demo/repository --partitions 2
  .venv-demo/bin/sluice infer digits-cascade --zeros
  .venv-demo/bin/sluice top
  .venv-demo/bin/loadgen run --target http://localhost:8000 --model digits-ensemble --rate 300 --duration 10 \\
      --slo-ms 50 --samples examples/digits/digits.npz --subset test --labels y
"""


class DemoError(Exception):
    """The demo cannot continue; the message is for its user."""


class Server(NamedTuple):
    """The ports of a running server."""

    http_port: int
    grpc_port: int

    @property
    def metrics_url(self) -> str:
        """URL of the server's metrics."""
        return f"http://127.0.0.1:{self.http_port}/metrics"

    def target(self, protocol: str) -> str:
        """Address of the server for `http` or `grpc`."""
        return f"{protocol}://127.0.0.1:{self.http_port if protocol == 'http' else self.grpc_port}"


class Replay(NamedTuple):
    """The result of sending every test image to one pipeline over one protocol.

    `run` is the first round, in which a rejected request counts as a miss. The counts are over all rounds: requests
    `sent`, requests `unanswered`, `correct` answers, and `escalated` rows.
    """

    pipeline: str
    protocol: str
    run: RunResult
    sent: int
    unanswered: int
    correct: int
    escalated: int


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """Serve the repository in `directory` on free ports until the block ends; the log is `server.log` there.

    Raises DemoError when the server does not start, or does not stop cleanly.
    """
    ready, log_file = directory / "ready.json", directory / "server.log"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "serve", "--repository", str(directory / "repository")]
    command += ["--partitions", "2", "--http-port", "0", "--grpc-port", "0", "--ready-file", str(ready)]
    with log_file.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield wait_until_ready(process, ready, log_file)
            process.terminate()
            if (code := process.wait(STOP_TIMEOUT_S)) != 0:
                raise DemoError(f"server: exited with status {code} on SIGTERM, expected 0; its log is {log_file}")
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"server: did not stop in {STOP_TIMEOUT_S} s; its log is {log_file}") from error
        finally:
            process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log_file: Path) -> Server:
    """Wait until the server has loaded its models."""
    give_up = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise DemoError(f"server: did not start; the end of its log:\n{log_file.read_text()[-2000:]}")
        time.sleep(0.02)
    ports = json.loads(ready.read_text())
    return Server(ports["http_port"], ports["grpc_port"])


def replay(server: Server, pipeline: str, protocol: str, requests: Path) -> Replay:
    """Send every test image once with Poisson arrivals, and rejected ones again, in at most `ROUNDS` rounds.

    `requests` is a scratch file for the samples of a round.
    """
    with np.load(DATA) as file:
        arrays = dict(file)
    rows = arrays["test"]
    runs: list[RunResult] = []
    sent = failed = correct = escalated = 0
    while len(rows) and len(runs) < ROUNDS:
        np.savez(requests, raw=arrays["raw"], y=arrays["y"], rows=rows)
        result = runner.run(
            RunConfig(
                target=server.target(protocol),
                model=pipeline,
                rate=RATE_PER_S,
                slo_ms=OBJECTIVE_MS,
                seed=len(runs),
                samples=SampleSource(str(requests), labels="y", subset="rows"),
                each_once=True,
                warmup_s=0,
                metrics_url=server.metrics_url,
            )
        )
        runs.append(result)
        sent += len(rows)
        status = result.record.status
        correct += round((result.accuracy or 0) * result.answered_rows)
        failed += int(((status != Status.OK) & (status != Status.SHED)).sum())
        rows = rows[result.record.sample[status == Status.SHED]]
        if result.server is not None:
            escalated += sum(stage.rows for stage in result.server.stages if stage.stage == "large")
    return Replay(pipeline, protocol, runs[0], sent, failed + len(rows), correct, escalated)


def table(replays: Sequence[Replay]) -> str:
    """The table of results: a heading, and a line for each replay."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for pipeline, protocol, run, _, _, correct, escalated in replays:
        images, latency = len(run.record), run.metrics.latency_ms
        p50, p99 = (f"{latency.p50:.2f}", f"{latency.p99:.2f}") if latency else ("-", "-")
        share = f"{escalated / images:.1%}" if escalated else "-"
        mean_batch = run.server.mean_batch if run.server else 0.0
        figures = (
            *(str(images), f"{correct / images:.4f}", share, p50, p99),
            *(f"{run.metrics.goodput_per_s:.1f}", f"{run.metrics.attainment:.2%}", f"{mean_batch:.2f}"),
        )
        rows.append((pipeline, protocol, *figures))
    return "\n".join(table_lines(rows, left=2))


def settled_requests(server: Server) -> Counter[str]:
    """Outcomes of each pipeline, as the server counts them."""
    with urllib.request.urlopen(server.metrics_url, timeout=START_TIMEOUT_S) as response:
        text = response.read().decode()
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "sluice_requests_total":
                counts[sample.labels["pipeline"].partition(":")[0]] += round(sample.value)
    return counts


def failures(replays: Sequence[Replay], settled: Counter[str]) -> Iterator[str]:
    """Errors in the results, one sentence each."""
    for pipeline, protocol, run, _, unanswered, correct, _ in replays:
        if unanswered:
            yield f"{pipeline} over {protocol}: {unanswered} requests got no answer: {run.record.reasons}"
        elif correct != KNOWN_CORRECT[pipeline]:
            yield f"{pipeline} over {protocol}: expected {KNOWN_CORRECT[pipeline]} correct answers, got {correct}"
    for pipeline in KNOWN_CORRECT:
        sent = sum(replay.sent for replay in replays if replay.pipeline == pipeline)
        if settled[pipeline] != sent:
            yield f"{pipeline}: expected an outcome for each of {sent} requests, the server counts {settled[pipeline]}"


def warnings(replays: Sequence[Replay]) -> Iterator[str]:
    """Signs of a busy machine in the results, one sentence each."""
    for pipeline, protocol, run, sent, *_ in replays:
        if run.metrics.attainment < EXPECTED_ATTAINMENT:
            again = f"; {sent - len(run.record)} were rejected and sent again" if sent > len(run.record) else ""
            yield f"{pipeline} over {protocol}: only {run.metrics.attainment:.1%} met {OBJECTIVE_MS} ms{again}"


def main(directory: Path = DIRECTORY) -> int:
    """Build the repository in `directory`, serve it, send traffic and print the table; returns the exit status."""
    print("Training the models …", flush=True)
    build_repository(directory / "repository")
    try:
        with serving(directory) as server:
            print(f"Sending labelled traffic, {RATE_PER_S} requests/s …", flush=True)
            replays = [
                replay(server, pipeline, protocol, directory / "requests.npz")
                for pipeline in KNOWN_CORRECT
                for protocol in ("http", "grpc")
            ]
            settled = settled_requests(server)
    except (DemoError, ServingError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(f"\n{table(replays)}\n")
    for warning in warnings(replays):
        print(f"Warning: {warning} (is the machine busy?)")
    wrong = list(failures(replays, settled))
    for sentence in wrong:
        print(f"demo: {sentence}", file=sys.stderr)
    if not wrong:
        print(NEXT_STEPS)
    return bool(wrong)


if __name__ == "__main__":
    # SIGTERM ends the server as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
