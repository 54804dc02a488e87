"""Overload of a real server: goodput, late answers, memory, recovery, and the share of a modest neighbour.

The server has one partition and two models that sleep (backend `timed`), so the partition is the limit, and neither
the gateway nor the machine. The clients are those of the load generator, with Poisson arrivals. An answer is in time
within the objective from when its request was due, so the server leaves some of it for the way to the client. The
capacity is the rate in full batches without pauses.

1. The peak: the highest goodput at several rates around the capacity.
2. Overload: 10 times the capacity, then at once half of it. Goodput, the share of the answers that is late, and the
   memory of the gateway's process are those of the overload. The recovery ends with the last request that ended late,
   refused or failed after the overload.
3. Two models: one is offered 10 times the capacity, the other half of its fair half.

Requests that turn out late are answered (`late: serve`, the default), so the answered are those that were admitted.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.support.clients import PROTOCOLS, Queries, client_processes, save_sleeping, send
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.models.units import NS_PER_S

LATENCY_MS = {1: 20.0, 2: 27.5, 4: 42.0, 8: 72.0}
FULL = max(LATENCY_MS)
CAPACITY = FULL / LATENCY_MS[FULL] * 1000
SLO_MS, NETWORK_MS = 200.0, 2.0
HOG, MODEST = "hog", "modest"
PEAK_FACTORS = (0.8, 0.9, 1.0, 1.2, 1.5)
PEAK_S, AFTER_S, SHARED_S = 12.0, 10.0, 20.0
OVERLOAD, CALM, MODEST_SHARE = 10.0, 0.5, 0.25
WARM_S = 20.0
"""Until then the memory of the gateway may grow."""
CONNECTIONS = 2048

GOOD, LATE, GROWTH_MB, RECOVERY_S = 0.95, 0.01, 2.0, 1.0
"""The goals: the least share of the peak, and the most of late answers, of memory and of the time to recover."""


class Setting(NamedTuple):
    """A running server, the processes of its clients, and the protocol that they speak."""

    server: ServerProcess
    pool: ProcessPoolExecutor
    protocol: str
    directory: Path

    def config(self, model: str, rate: float, seconds: float | None, seed: int, arrivals: Arrivals) -> RunConfig:
        """A run of the load generator."""
        port = self.server.http_port if self.protocol == "http" else self.server.grpc_port
        return RunConfig(
            target=f"{self.protocol}://127.0.0.1:{port}",
            model=model,
            rate=rate,
            duration_s=seconds,
            warmup_s=0,
            slo_ms=SLO_MS,
            seed=seed,
            connections=CONNECTIONS,
            arrivals=arrivals,
        )

    def offer(self, model: str, factor: float, seconds: float, seed: int) -> RunConfig:
        """A run at a multiple of the capacity."""
        return self.config(model, factor * CAPACITY, seconds, seed, Arrivals())

    def steps(self, seconds: float) -> RunConfig:
        """A run with the overload for some seconds and the calm after it."""
        source = np.random.default_rng(1)
        overload = Arrivals().draw(OVERLOAD * CAPACITY, seconds, None, source)
        calm = Arrivals().draw(CALM * CAPACITY, AFTER_S, None, source) + round(seconds * NS_PER_S)
        times = np.concatenate(([0], overload, calm)) / NS_PER_S
        file = self.directory / "steps.csv"
        file.write_text("\n".join(map(repr, times.tolist())))
        rate = (len(times) - 1) / times[-1]  # That of the file, so that the times stay as they are.
        trace = Arrivals(ArrivalProcess.TRACE, trace=str(file))
        return self.config(HOG, rate, None, 1, trace)


def peak(setting: Setting) -> Iterator[tuple[float, float]]:
    """Offered rate and goodput by factor, of all but the first two seconds."""
    for seed, factor in enumerate(PEAK_FACTORS):
        queries = setting.pool.submit(send, setting.offer(HOG, factor, PEAK_S, seed)).result()
        measured = queries.due_s >= queries.due_s[0] + 2
        seconds = PEAK_S - (queries.due_s[measured][0] - queries.due_s[0])
        yield measured.sum() / seconds, queries.good(SLO_MS)[measured].sum() / seconds


def overload(setting: Setting, seconds: float, highest: float) -> Iterator[Figure]:
    """Measure the overload and the recovery."""
    before_mb = setting.server.rss_mb()
    running = setting.pool.submit(send, setting.steps(seconds))
    warming_s = min(WARM_S, seconds / 2)
    time.sleep(warming_s)
    warm_mb = setting.server.rss_mb()
    time.sleep(seconds - warming_s)
    after_mb = setting.server.rss_mb()
    queries = running.result()

    end_s = queries.due_s[0] + seconds
    during, good = queries.due_s < end_s, queries.good(SLO_MS)
    goodput = float((good & during).sum() / seconds)
    admitted = int((queries.answered & during).sum())
    late = int((queries.answered & ~good & during).sum())
    failed = int((~queries.answered & ~queries.refused).sum())
    misses_s = queries.done_s[~good & (queries.done_s > end_s)]
    recovery_s = max(misses_s - end_s, default=0.0)
    calm = ~during & (queries.due_s >= end_s + recovery_s)

    yield Figure("offered in overload", f"{during.sum() / seconds:.0f}/s")
    yield Figure("goodput in overload", f"{goodput:.1f}/s, {goodput / CAPACITY:.1%} of the capacity")
    share = goodput / highest
    yield Figure("against the peak", f"{share:.1%}", f">= {GOOD:.0%}", share >= GOOD)
    yield Figure(
        "late of the admitted",
        f"{late} of {admitted}, {late / admitted:.2%}",
        f"<= {LATE:.0%}",
        late <= LATE * admitted,
    )
    yield Figure("neither answered nor refused", f"{failed}", "0", not failed)
    memory = f"{before_mb:.1f}, {warm_mb:.1f}, {after_mb:.1f} MB"
    growth = after_mb - warm_mb
    yield Figure("RSS at the start, warm, at the end", memory, f"<= {GROWTH_MB:g} MB more", growth <= GROWTH_MB)
    yield Figure("recovery at half the capacity", f"{recovery_s:.3f} s", f"< {RECOVERY_S:g} s", recovery_s < RECOVERY_S)
    yield Figure("in time from then on", f"{good[calm].sum()} of {calm.sum()}")
    yield from notes(queries)


def neighbours(setting: Setting) -> Iterator[Figure]:
    """Measure a modest model beside a hog; the hog begins first and ends last."""
    hog = setting.pool.submit(send, setting.offer(HOG, OVERLOAD, SHARED_S + 4, 2))
    time.sleep(2)
    modest = setting.pool.submit(send, setting.offer(MODEST, MODEST_SHARE, SHARED_S, 3)).result()
    others = hog.result()
    in_time, offered = int(modest.good(SLO_MS).sum()), len(modest.due_s)
    share = f"{in_time} of {offered}, {in_time / offered:.2%}; {modest.refused.sum()} refused"
    yield Figure("of a modest model in time", share, "all", in_time == offered)
    later = modest.due_s >= modest.due_s[0] + 2
    yield Figure("after its first 2 s", f"{(modest.good(SLO_MS) & later).sum()} of {later.sum()}")
    goodput = others.good(SLO_MS).sum() / (SHARED_S + 4)
    yield Figure("goodput of the hog beside it", f"{goodput:.1f}/s")
    yield from notes(others)


def notes(queries: Queries) -> Iterator[Figure]:
    """The notes of the load generator."""
    yield from (Figure("note", note) for note in queries.notes)


def figures(protocol: str, seconds: float) -> Iterator[Figure]:
    """Measure over one protocol, with a server of its own."""
    with TemporaryDirectory() as name, client_processes(2) as pool:
        directory = Path(name)
        for model in (HOG, MODEST):
            save_sleeping(directory / "models", model, LATENCY_MS)
        config = f"partitions: 1\nmax_batch_size: {FULL}\nnetwork_ms: {NETWORK_MS}\n"
        with gateway(directory, config, None, "--repository", str(directory / "models")) as server:
            setting = Setting(server, pool, protocol, directory)
            found = list(peak(setting))
            rates = ", ".join(f"{good:.1f} of {offered:.0f}" for offered, good in found)
            yield Figure("goodput at the offered rates", f"{rates}/s")
            highest = max(good for _, good in found)
            yield Figure("peak", f"{highest:.1f}/s, {highest / CAPACITY:.1%} of the capacity of {CAPACITY:.1f}/s")
            yield from overload(setting, seconds, highest)
            yield from neighbours(setting)


def main() -> int:
    """Print the figures of each protocol; returns 2 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    chosen = parser.parse_args()
    met = [show(protocol, figures(protocol, chosen.seconds)) for protocol in chosen.protocol]
    return 0 if all(met) else 2


if __name__ == "__main__":
    raise SystemExit(main())
