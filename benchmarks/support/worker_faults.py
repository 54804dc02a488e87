"""Workers of a real server die and stop under load: each request has one answer, its own, and service goes on.

Two workers serve a model that sleeps (backend `timed`) and echoes a number. Each request has a number of its own, so an
answer to another request is noticed. Clients over HTTP and gRPC send at a steady rate; one worker can take all of it.
All settings of the server are the defaults, so a partition that loses its worker again and again is in quarantine, and
the kills hit the only worker that is left.

1. Kills: `SIGKILL` for a random worker at random moments, whether the last one is back or not.
2. Stops: `SIGSTOP` twice for one worker, then twice for the other. The first time it never goes on, and the server
   replaces it after 10 s; the second time it goes on after a random time.

A gap is the longest time without a good answer between a fault and the next, over HTTP or over gRPC. Good answers are
in time and the request's own. The number of requests that the server counted is compared with the number sent, so one
that ended twice is noticed too.
"""

import argparse
import http.client
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.support.clients import PROTOCOLS, Queries, client_processes, save_sleeping, send
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.scenarios.config import RunConfig

LATENCY_MS = {1: 10.0, 2: 12.0, 4: 16.0, 8: 24.0}
RATE = 80.0
"""Requests a second of each protocol; one worker does 333 in full batches."""
BEFORE_S, AFTER_S = 3.0, 5.0
KILL_PAUSE_S = 0.2, 2.0
RESUMED_S, RESUMED_SLOT_S = (0.1, 3.0), 4.5
REPLACED_SLOT_S = 15.0
"""The time until the next fault: enough to find that the worker hangs, and to have the next one ready."""
KILL_SLO_MS, STOP_SLO_MS = 2000.0, 1000.0
MARGIN_S = 0.1
GAP_S = 2.0
"""The goals: no answer later than its deadline and the margin, and no longer gap."""


class Fault(NamedTuple):
    """A signal at a time from the first one; a worker that goes on does so after `resumed_s`, 0 for never."""

    at_s: float
    resumed_s: float = 0.0


def kills(count: int, source: random.Random) -> tuple[list[Fault], float]:
    """The kills, and the time until the last of them is over."""
    faults, at_s = [], 0.0
    for _ in range(count):
        faults.append(Fault(at_s))
        at_s += source.uniform(*KILL_PAUSE_S)
    return faults, at_s


def stops(count: int, source: random.Random) -> tuple[list[Fault], float]:
    """The stops, and the time until the last of them is over."""
    faults, at_s = [], 0.0
    for number in range(count):
        resumed_s = source.uniform(*RESUMED_S) if number % 2 else 0.0
        at_s += source.uniform(0.0, 1.0)
        faults.append(Fault(at_s, resumed_s))
        at_s += RESUMED_SLOT_S if resumed_s else REPLACED_SLOT_S
    return faults, at_s


class Server:
    """The server with what is asked of it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process

    def targets(self) -> list[str]:
        """The URL of each protocol."""
        ports = self.process.http_port, self.process.grpc_port
        return [f"{protocol}://127.0.0.1:{port}" for protocol, port in zip(PROTOCOLS, ports, strict=True)]

    def read(self, path: str) -> str:
        """The answer to a request for that path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.process.http_port, timeout=60)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def workers(self) -> list[int | None]:
        """The process of each partition; None while there is none."""
        partitions: list[dict[str, Any]] = json.loads(self.read("/v2/sluice/partitions"))["partitions"]
        return [partition["worker"] for partition in partitions]

    def total(self, metric: str) -> int:
        """The sum of a metric over its labels."""
        lines = (line.rsplit(" ", 1) for line in self.read("/metrics").splitlines())
        return int(sum(float(value) for name, value in lines if name.split("{")[0] == metric))


class Outcome(NamedTuple):
    """The queries of each protocol, the times of the faults, and the server's own counts."""

    sent: list[Queries]
    faults_s: list[float]
    counted: int
    restarts: int


@contextmanager
def server(directory: Path) -> Iterator[Server]:
    """Run a server with two workers."""
    save_sleeping(directory / "models", "echo", LATENCY_MS)
    config = f"partitions: 2\nmax_batch_size: {max(LATENCY_MS)}\n"
    with gateway(directory, config, None, "--repository", str(directory / "models"), "--log-level", "error") as running:
        yield Server(running)


def configs(directory: Path, targets: list[str], slo_ms: float, seconds: float) -> Iterator[RunConfig]:
    """A run of the load generator for each protocol; each number is sent once."""
    count = int(RATE * seconds * 1.2) + 100
    for seed, target in enumerate(targets):
        numbers = np.arange(count, dtype=np.int64) + seed * count
        file = directory / f"{seed}.npz"
        np.savez(file, x=numbers[:, np.newaxis], number=numbers)
        samples = SampleSource(str(file), labels="number")
        yield RunConfig(
            target=target,
            model="echo",
            rate=RATE,
            duration_s=seconds,
            warmup_s=0,
            slo_ms=slo_ms,
            seed=seed,
            samples=samples,
            each_once=True,
            connections=1024,
        )


def inflict(running: Server, faults: list[Fault], kill: bool, source: random.Random) -> Iterator[float]:
    """Send the signals at their times; yields the time of each."""
    began_s = time.monotonic()
    for number, fault in enumerate(faults):
        time.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
        while not (found := [worker for worker in running.workers() if worker is not None]):
            time.sleep(0.01)
        victim = source.choice(found) if kill else found[number // 2 % len(found)]
        os.kill(victim, signal.SIGKILL if kill else signal.SIGSTOP)
        yield time.monotonic()
        if fault.resumed_s:
            time.sleep(fault.resumed_s)
            os.kill(victim, signal.SIGCONT)


def measure(faults: list[Fault], seconds: float, kill: bool, slo_ms: float, source: random.Random) -> Outcome:
    """Send requests, and the signals in the meantime."""
    with TemporaryDirectory() as name, client_processes(len(PROTOCOLS)) as pool, server(Path(name)) as running:
        runs = configs(Path(name), running.targets(), slo_ms, BEFORE_S + seconds + AFTER_S)
        sending = [pool.submit(send, config) for config in runs]
        while running.total("sluice_requests_total") < BEFORE_S * RATE:
            time.sleep(0.05)
        faults_s = list(inflict(running, faults, kill, source))
        sent = [each.result() for each in sending]
        return Outcome(
            sent, faults_s, running.total("sluice_requests_total"), running.total("sluice_worker_restarts_total")
        )


def gaps(outcome: Outcome, slo_ms: float) -> list[float]:
    """The longest gap of each fault."""
    ends = [*outcome.faults_s[1:], outcome.faults_s[-1] + AFTER_S]
    longest = [0.0] * len(outcome.faults_s)
    for queries in outcome.sent:
        last_s = queries.due_s[-1]
        if last_s < ends[-1] - AFTER_S:
            raise RuntimeError("the load ended before the last fault")
        # Service that is not back at the end of the load is a gap as well.
        good_s = np.sort(np.append(queries.done_s[queries.good(slo_ms) & queries.right], last_s))
        for number, (begin_s, end_s) in enumerate(zip(outcome.faults_s, ends, strict=True)):
            first = max(int(np.searchsorted(good_s, begin_s)) - 1, 0)
            inside = good_s[first : int(np.searchsorted(good_s, end_s)) + 1]
            longest[number] = max(longest[number], float(np.diff(inside).max(initial=0.0)))
    return longest


def figures(outcome: Outcome, slo_ms: float) -> Iterator[Figure]:
    """The figures of all protocols together."""
    sent = sum(len(queries.due_s) for queries in outcome.sent)
    answered = sum(int(queries.answered.sum()) for queries in outcome.sent)
    right = sum(int(queries.right.sum()) for queries in outcome.sent)
    latest_s = max(float(queries.took_s.max()) for queries in outcome.sent)
    longest = gaps(outcome, slo_ms)
    limit_s = slo_ms / 1000 + MARGIN_S
    yield Figure("sent; ended, as the server counts", f"{sent}; {outcome.counted}", "equal", sent == outcome.counted)
    yield Figure("answered", f"{answered}", "all", answered == sent)
    yield Figure("with the content of its own request", f"{right}", "all", right == sent)
    yield Figure("the latest answer or refusal", f"{latest_s:.3f} s", f"<= {limit_s:g} s", latest_s <= limit_s)
    yield Figure("the longest gap", f"{max(longest):.3f} s", f"< {GAP_S:g} s", max(longest) < GAP_S)
    yield Figure("the median gap", f"{np.median(longest):.3f} s")
    yield Figure("the gap of the last fault", f"{longest[-1]:.3f} s")
    yield Figure("workers replaced", f"{outcome.restarts}")
    for queries in outcome.sent:
        yield from (Figure("failure", f"{count} x {reason}") for reason, count in queries.reasons.items())
        yield from (Figure("note", note) for note in queries.notes)


def main() -> int:
    """Print the figures of kills and of stops; returns 2 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    source = random.Random(chosen.seed)
    met = True
    if chosen.kills:
        outcome = measure(*kills(chosen.kills, source), True, KILL_SLO_MS, source)
        met = show(f"{chosen.kills} kills", figures(outcome, KILL_SLO_MS))
    if chosen.stops:
        outcome = measure(*stops(chosen.stops, source), False, STOP_SLO_MS, source)
        met = show(f"{chosen.stops} stops", figures(outcome, STOP_SLO_MS)) and met
    return 0 if met else 2


if __name__ == "__main__":
    raise SystemExit(main())
