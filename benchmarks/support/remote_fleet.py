"""A fleet of remote accelerators behind one gateway: the share of their summed rate that it brings, and its limit.

The accelerators are emulated (`emulated_workers`): they sleep, and all else is real, over TCP on this machine. One runs
a batch of eight rows in `FULL_MS`, and their summed rate is that of full batches without pauses. Gateway, accelerators
and clients share the machine.

1. Poisson arrivals at `OFFERED` of the summed rate, by the load generator: the goodput, which is the rate of answers
   within `SLO_SHARE` times the latency of a full batch, counted from when a request was due, and the latency at p99.
2. The limit of the gateway: with accelerators that are faster and faster, clients keep two full batches of requests for
   each in flight. The gateway is the limit where the rate falls below `OFFERED` of the summed one.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.support.clients import client_processes, save_sleeping, send
from benchmarks.support.closed_loop import Closed, drive_calls
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway, running
from sluice.loadgen.scenarios.config import RunConfig

ACCELERATORS = 64
ROWS = 8
FULL_MS = 512.0
SHARES = {1: 0.5, 2: 0.57, 4: 0.71, ROWS: 1.0}
"""The latency of a batch by its rows, as a share of that of a full one."""
SLO_SHARE = 2.5
OFFERED = 0.95
SPEEDS = (2.0, 4.0, 8.0, 16.0)
SETTLE_S = 3.0
CLIENTS = 2
CONNECTIONS = 16
MODEL = "m"


class Cost(NamedTuple):
    """The processor time of the gateway for a request, and the share of the time that it waited for a core."""

    gateway_us: float
    waited: float


class Outcome(NamedTuple):
    """A run with Poisson arrivals. Rates are a second; `failed` counts requests that were refused or failed.

    `notes` are those of the clients, and why requests failed.
    """

    summed: float
    offered: float
    goodput: float
    p99_ms: float
    slo_ms: float
    failed: int
    cost: Cost
    notes: tuple[str, ...]

    @property
    def is_met(self) -> bool:
        """True if 99 % of what was offered was answered within the objective."""
        return self.p99_ms <= self.slo_ms


class Limit(NamedTuple):
    """A run in a closed loop: the rate beside the summed one."""

    summed: float
    closed: Closed
    cost: Cost

    @property
    def share(self) -> float:
        """The share of the summed rate."""
        return self.closed.rate / self.summed


@contextmanager
def fleet(directory: Path, count: int) -> Iterator[list[str]]:
    """The addresses of emulated accelerators, which are in a process of their own."""
    ready = directory / "fleet.json"
    arguments = ["-m", "benchmarks.support.emulated_workers", "--count", str(count), "--ready-file", str(ready)]
    with running(arguments, ready, None):
        yield json.loads(ready.read_text())["urls"]


@contextmanager
def gateway_over(count: int, full_ms: float) -> Iterator[ServerProcess]:
    """A gateway whose only partitions are accelerators of this latency."""
    with TemporaryDirectory() as name, fleet(Path(name), count) as urls:
        directory = Path(name)
        save_sleeping(directory / "models", MODEL, {rows: share * full_ms for rows, share in SHARES.items()})
        remote = [{"name": "fleet", "kind": "cpu1", "urls": urls}]
        config = json.dumps({"partitions": {"remote": remote}, "max_batch_size": ROWS})
        with gateway(directory, config, None, "--repository", str(directory / "models")) as server:
            yield server


class Meter:
    """Measures the cost of requests from now on."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._cpu_s, self._waited_s = server.cpu_s(), _waited_s(server.process.pid)

    def cost(self, requests: int, seconds: float) -> Cost:
        """The cost of all requests since then, which took these seconds."""
        waited_s = _waited_s(self._server.process.pid) - self._waited_s
        return Cost(1e6 * (self._server.cpu_s() - self._cpu_s) / requests, waited_s / seconds)


def _waited_s(pid: int) -> float:
    """The time in which a process was ready to run and had no core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def offer(pool: ProcessPoolExecutor, count: int, speed: float, seconds: float) -> Outcome:
    """Offer a part of the summed rate of accelerators that are `speed` times as fast."""
    full_ms = FULL_MS / speed
    summed = count * ROWS / full_ms * 1000
    slo_ms = SLO_SHARE * full_ms
    with gateway_over(count, full_ms) as server:
        meter = Meter(server)
        configs = [
            RunConfig(
                target=f"grpc://127.0.0.1:{server.grpc_port}",
                model=MODEL,
                rate=OFFERED * summed / CLIENTS,
                duration_s=SETTLE_S + seconds,
                warmup_s=0,
                slo_ms=slo_ms,
                seed=seed,
            )
            for seed in range(CLIENTS)
        ]
        queries = list(pool.map(send, configs))
        began_s = min(each.due_s[0] for each in queries)
        ran_s = max(each.done_s.max() for each in queries) - began_s
        cost = meter.cost(sum(len(each.due_s) for each in queries), float(ran_s))
    from_s, to_s = began_s + SETTLE_S, min(each.due_s[-1] for each in queries)
    took_ms = np.concatenate(
        [
            np.where(each.answered, each.took_s * 1000, np.inf)[(each.due_s >= from_s) & (each.due_s <= to_s)]
            for each in queries
        ]
    )
    return Outcome(
        summed,
        float(len(took_ms) / (to_s - from_s)),
        float((took_ms <= slo_ms).sum() / (to_s - from_s)),
        float(np.quantile(took_ms, 0.99, method="higher")),
        slo_ms,
        sum(int((~each.answered).sum()) for each in queries),
        cost,
        tuple(note for each in queries for note in (*each.notes, *each.reasons)),
    )


def saturate(count: int, speed: float, seconds: float) -> Limit:
    """Keep accelerators that are `speed` times as fast busy, as far as the gateway can."""
    full_ms = FULL_MS / speed
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name="x", datatype="INT64", shape=(1, 1))
    message.raw_input_contents.append(np.ones((1, 1), np.int64).tobytes())
    with gateway_over(count, full_ms) as server:
        meter = Meter(server)
        request = message.SerializeToString()
        closed = drive_calls(server.grpc_port, request, 2 * count * ROWS, seconds, CONNECTIONS)
        cost = meter.cost(round(1.1 * seconds * closed.rate), 1.1 * seconds)
    return Limit(count * ROWS / full_ms * 1000, closed, cost)


def figures(count: int, speeds: Sequence[float], seconds: float) -> Iterator[Figure]:
    """Measure the goodput, and then the rate at each speed until the gateway is the limit."""
    with client_processes(CLIENTS) as pool:
        outcome = offer(pool, count, 1.0, seconds)
    rates = f"{outcome.goodput:.0f} of {outcome.offered:.0f} in time, of {outcome.summed:.0f}/s summed"
    met = f">= {OFFERED:.0%} at p99"
    yield Figure("goodput at Poisson arrivals", rates, met, outcome.is_met)
    latency = f"{outcome.p99_ms:.0f} ms, {outcome.failed} refused or failed"
    yield Figure("the same: p99", latency, f"<= {outcome.slo_ms:.0f} ms", outcome.is_met)
    yield Figure("the same: the gateway", _described(outcome.cost))
    yield from (Figure("note", note) for note in outcome.notes)
    for speed in speeds:
        limit = saturate(count, speed, seconds)
        closed = limit.closed
        yield Figure(
            f"{limit.summed:.0f}/s summed", f"{closed.rate:.0f}/s, {limit.share:.0%}; p99 {closed.p99_ms:.0f} ms"
        )
        yield Figure("the same: the gateway", _described(limit.cost))
        if limit.share < OFFERED:
            break


def _described(cost: Cost) -> str:
    return f"{cost.gateway_us:.0f} us a request, waited {cost.waited:.0%} of the time"


def main() -> int:
    """Print the figures; returns 2 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=ACCELERATORS)
    parser.add_argument("--speeds", type=float, nargs="+", default=list(SPEEDS))
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    return 0 if show("fleet", figures(chosen.count, chosen.speeds, chosen.seconds)) else 2


if __name__ == "__main__":
    raise SystemExit(main())
