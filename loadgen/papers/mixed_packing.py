"""Twenty-five engines of six kinds on one GPU: the workload of the slides of Ferikoglou et al.

The kinds, their queries and their memory are published; logs of these runs are not. How long a query takes, how long an
engine needs to start, the order, and that the quantized MobileNet takes as much memory as the other are assumed, so
that only ratios can be compared. Those of the slides, on average over what is asked for too much: engines wait 8.6
times as long with Alibaba's scheduler as with theirs, which is `pp` here, and 11 times with Kubernetes'; the 99th
percentile of the time that a job takes is 2.4 and 3.2 times theirs. Engines are taken not to slow each other down.
"""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from sluice.loadgen.papers.memory_packing import (
    DEVICE_MIB,
    EXTRA_PERCENT,
    GIB,
    LESS_MIB,
    SEED,
    WATCHED,
    arrivals_ns,
    request_mib,
)
from sluice.loadgen.papers.replay import Replayed, ReplayJob, SchedulingPace, replay
from sluice.models.units import NS_PER_S
from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.exclusive import Exclusive
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policy import PackingPolicy
from sluice.mps.packing.pp import PeakPrediction
from sluice.mps.packing.tenant import MemoryPhase, Tenant


class Engine(msgspec.Struct, frozen=True):
    """A kind of engine: its memory as measured, and as whole GiB, and the queries of each that there is."""

    name: str
    memory_mib: int
    memory_gib: int
    query_s: float
    queries: tuple[int, ...]


ENGINES = (
    Engine("mobilenet", 872, 1, 0.02, (1024, 1024, 2048, 2048)),
    Engine("mobilenet-quantized", 872, 1, 0.02, (256, 256, 512, 512)),
    Engine("resnet50", 8388, 9, 0.03, (4096, 4096, 8192, 8192)),
    Engine("ssd-mobilenet", 6994, 7, 0.12, (128, 128, 128, 1024, 1024)),
    Engine("ssd-mobilenet-quantized-finetuned", 6994, 7, 0.12, (64, 64, 1024, 1024)),
    Engine("ssd-mobilenet-symmetrically-quantized", 6994, 7, 0.12, (512, 512, 4096, 4096)),
)
_START = (MemoryPhase(0, 9 * NS_PER_S), MemoryPhase(318, 6 * NS_PER_S))

_POLICIES: dict[str, tuple[PackingPolicy, SchedulingPace]] = {
    "exclusive": (Exclusive(), SchedulingPace()),
    "best_fit": (BestFit(unit_mib=GIB), SchedulingPace()),
    "pp": (PeakPrediction(), WATCHED),
    "peak_safe": (PeakSafe(), SchedulingPace(look_ns=NS_PER_S)),
}


def cases() -> dict[str, list[Replayed]]:
    """By policy, a replay for each of `EXTRA_PERCENT`."""
    return {
        name: [
            replay(policy, jobs(policy, extra_percent), {"gpu": DEVICE_MIB}, pace) for extra_percent in EXTRA_PERCENT
        ]
        for name, (policy, pace) in _POLICIES.items()
    }


def jobs(policy: PackingPolicy, extra_percent: int) -> list[ReplayJob]:
    """All engines in a shuffled order, which ask for so much more than they take."""
    engines = [
        (f"{each.name}-{number}", each, queries) for each in ENGINES for number, queries in enumerate(each.queries)
    ]
    random.Random(SEED).shuffle(engines)
    found = []
    for (name, engine, queries), arrival_ns in zip(engines, arrivals_ns(len(engines)), strict=True):
        asked_mib = request_mib(policy, extra_percent, engine.memory_mib, engine.memory_gib)
        life = (*_START, MemoryPhase(engine.memory_mib, round(queries * engine.query_s * NS_PER_S)))
        found.append(ReplayJob(Tenant(name, asked_mib, life), arrival_ns, life, LESS_MIB))
    return found


def ratios(replayed: Sequence[Replayed], others: Sequence[Replayed]) -> tuple[float, float]:
    """How many times as long as in the others engines wait, and take at the 99th percentile; on average."""
    pending = fmean(run.pending_s for run in replayed) / fmean(run.pending_s for run in others)
    return pending, fmean(run.p99_s for run in replayed) / fmean(run.p99_s for run in others)


def table(runs: Mapping[str, Sequence[Replayed]]) -> str:
    """A Markdown table: a line for each policy; in the cells the mean wait and the 99th percentile, in seconds."""
    lines = [
        "| policy | "
        + " | ".join(f"+{extra} %" for extra in EXTRA_PERCENT)
        + " | pending, times that of pp | p99, times | pending, times that of peak_safe | p99, times | restarts |",
        "|" + "---|" * (len(EXTRA_PERCENT) + 6),
    ]
    for name, replayed in runs.items():
        cells = " | ".join(f"{run.pending_s:.0f} / {run.p99_s:.0f}" for run in replayed)
        times = " | ".join(f"{ratio:.1f}" for other in ("pp", "peak_safe") for ratio in ratios(replayed, runs[other]))
        lines.append(f"| {name} | {cells} | {times} | {sum(run.restarts for run in replayed)} |")
    return "\n".join(lines) + "\n"
