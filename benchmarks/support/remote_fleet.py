"""A fleet of remote accelerators behind one gateway: the share of their summed rate that it brings, and its limit.

The accelerators are emulated (`emulated_workers`): they sleep, and all else is real, over TCP on this machine. The
clients are those of the load generator, with Poisson arrivals. An accelerator runs a batch of eight rows in
`FULL_MS`, and the objective is `SLO_SHARE` times that. Their summed rate is that of full batches without pauses.

Each line makes the accelerators faster by a factor, offers a share of their summed rate, and has the goodput (answers
within the objective, counted from when a request was due), the latency at p99, and the processor time of the gateway.
The gateway is the limit where p99 is no longer within the objective; gateway, accelerators and clients share the
machine.
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

from benchmarks.support.clients import client_processes, save_sleeping, send
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway, running
from sluice.loadgen.run.result import RunConfig

ACCELERATORS = 64
ROWS = 8
FULL_MS = 512.0
SHARES = {1: 0.5, 2: 0.57, 4: 0.71, ROWS: 1.0}
"""The latency of a batch by its rows, as a share of that of a full one."""
SLO_SHARE = 2.5
OFFERED = 0.95
SPEEDS = (1.0, 2.0, 3.0, 4.0, 6.0)
SETTLE_S = 3.0
CLIENTS = 2
MODEL = "m"


class Outcome(NamedTuple):
    """A run at a rate: goodput and latency of what was offered, and the cores that each side took.

    Rates are a second; `failed` counts requests that were refused or failed. `gateway_us` is the processor time of the
    gateway for a request, and `waited` the share of the run in which other processes kept it from running. `notes` are
    those of the clients, and why requests failed.
    """

    summed: float
    offered: float
    goodput: float
    p99_ms: float
    slo_ms: float
    failed: int
    gateway_cores: float
    fleet_cores: float
    gateway_us: float
    waited: float
    notes: tuple[str, ...]

    @property
    def is_met(self) -> bool:
        """True if 99 % of what was offered was answered within the objective."""
        return self.p99_ms <= self.slo_ms


@contextmanager
def fleet(directory: Path, count: int) -> Iterator[tuple[ServerProcess, list[str]]]:
    """Emulated accelerators in a process, and their addresses."""
    ready = directory / "fleet.json"
    arguments = ["-m", "benchmarks.support.emulated_workers", "--count", str(count), "--ready-file", str(ready)]
    with running(arguments, ready, None) as process:
        yield process, json.loads(ready.read_text())["urls"]


@contextmanager
def gateway_over(directory: Path, urls: Sequence[str], latency_ms: dict[int, float]) -> Iterator[ServerProcess]:
    """A gateway whose only partitions are these, with a model of these latencies."""
    save_sleeping(directory / "models", MODEL, latency_ms)
    remote = [{"name": "fleet", "kind": "cpu1", "urls": list(urls)}]
    config = json.dumps({"partitions": {"remote": remote}, "max_batch_size": ROWS})
    with gateway(directory, config, None, "--repository", str(directory / "models")) as server:
        yield server


def measure(pool: ProcessPoolExecutor, count: int, speed: float, offered: float, seconds: float) -> Outcome:
    """Offer a share of the summed rate of accelerators that are `speed` times as fast."""
    full_ms = FULL_MS / speed
    summed = count * ROWS / full_ms * 1000
    slo_ms = SLO_SHARE * full_ms
    with TemporaryDirectory() as name, fleet(Path(name), count) as (process, urls):
        latency_ms = {rows: share * full_ms for rows, share in SHARES.items()}
        with gateway_over(Path(name), urls, latency_ms) as server:
            before = server.cpu_s(), process.cpu_s(), waited_s(server.process.pid)
            configs = [
                RunConfig(
                    target=f"http://127.0.0.1:{server.http_port}",
                    model=MODEL,
                    rate=offered * summed / CLIENTS,
                    duration_s=SETTLE_S + seconds,
                    warmup_s=0,
                    slo_ms=slo_ms,
                    seed=seed,
                    connections=2048,
                )
                for seed in range(CLIENTS)
            ]
            queries = list(pool.map(send, configs))
            after = server.cpu_s(), process.cpu_s(), waited_s(server.process.pid)
    began_s = max(each.due_s[0] for each in queries) + SETTLE_S
    ended_s = min(each.due_s[-1] for each in queries)
    measured = [(each.due_s >= began_s) & (each.due_s <= ended_s) for each in queries]
    took_ms = np.concatenate(
        [
            np.where(each.answered, each.took_s * 1000, np.inf)[kept]
            for each, kept in zip(queries, measured, strict=True)
        ]
    )
    ran_s = max(each.done_s.max() for each in queries) - min(each.due_s[0] for each in queries)
    return Outcome(
        summed,
        len(took_ms) / (ended_s - began_s),
        float((took_ms <= slo_ms).sum() / (ended_s - began_s)),
        float(np.quantile(took_ms, 0.99, method="higher")),
        slo_ms,
        sum(int((~each.answered).sum()) for each in queries),
        float((after[0] - before[0]) / ran_s),
        float((after[1] - before[1]) / ran_s),
        1e6 * (after[0] - before[0]) / sum(len(each.due_s) for each in queries),
        (after[2] - before[2]) / ran_s,
        tuple(note for each in queries for note in (*each.notes, *each.reasons)),
    )


def waited_s(pid: int) -> float:
    """Time that a process has been ready to run without a core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def described(outcome: Outcome) -> str:
    """The figures of a run on a line."""
    return (
        f"{outcome.goodput:.0f} of {outcome.offered:.0f} offered and {outcome.summed:.0f} summed a second, "
        f"p99 {outcome.p99_ms:.0f} of {outcome.slo_ms:.0f} ms, {outcome.failed} failed, "
        f"gateway {outcome.gateway_us:.0f} us a request, cores: gateway {outcome.gateway_cores:.2f}, "
        f"fleet {outcome.fleet_cores:.2f}; it waited for a core {outcome.waited:.0%} of the time"
    )


def figures(count: int, speeds: Sequence[float], seconds: float) -> Iterator[Figure]:
    """Measure at each speed until the objective is missed."""
    best = 0.0
    with client_processes(CLIENTS) as pool:
        for speed in speeds:
            outcome = measure(pool, count, speed, OFFERED, seconds)
            is_first = speed == speeds[0]
            goal = f">= {OFFERED:.0%} in time" if is_first else ""
            yield Figure(f"{speed:g} x", described(outcome), goal, outcome.is_met or not is_first)
            yield from (Figure("note", note) for note in outcome.notes)
            if not outcome.is_met:
                break
            best = outcome.goodput
    yield Figure("highest goodput with p99 in time", f"{best:.0f}/s")


def main() -> int:
    """Print the figures; returns 2 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=ACCELERATORS)
    parser.add_argument("--speeds", type=float, nargs="+", default=list(SPEEDS))
    parser.add_argument("--seconds", type=float, default=15)
    chosen = parser.parse_args()
    return 0 if show("fleet", figures(chosen.count, chosen.speeds, chosen.seconds)) else 2


if __name__ == "__main__":
    raise SystemExit(main())
