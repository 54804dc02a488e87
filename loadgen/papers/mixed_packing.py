"""Twenty-five engines of six kinds on one GPU: the workload of the slides of Ferikoglou et al.

The slides give the kinds, their queries and their memory, but no logs. Assumed here are the duration of a query, the
start time of an engine, the order of arrival, the memory of the quantized MobileNet (that of the other MobileNet), that
engines do not slow each other down, and that all kinds keep the GPU as busy as SSD-MobileNet does, so only ratios can
be compared. The slides report, averaged over the over-provisioning: engines wait 8.6 times as long with Alibaba's
scheduler as with theirs (`pp` here), and 11 times as long with Kubernetes'; the 99th percentile of job completion times
is 2.4 and 3.2 times theirs. Theirs has 1.5 and 2.5 times the memory in use, 2.1 and 6.1 times the busy share of the
GPU, and 1.1 and 1.2 times its power.
"""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from sluice.loadgen.papers.engines.gpu_use import SSD_ON_V100
from sluice.loadgen.papers.engines.packing_replay import PackingJob, ReplayResult, SchedulerTiming, replay
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.loadgen.papers.memory_packing import (
    DEVICE_MIB,
    EXTRA_PERCENT,
    GIB,
    LESS_MIB,
    SAMPLING,
    SEED,
    arrivals_ns,
    request_mib,
)
from sluice.models.units import NS_PER_S
from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.exclusive import Exclusive
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policy import PackingPolicy
from sluice.mps.packing.pp import PeakPrediction
from sluice.mps.packing.tenant import MemoryPhase, Tenant


class EngineKind(msgspec.Struct, frozen=True):
    """A kind of engine: its memory as measured and in whole GiB, and the queries of each instance."""

    name: str
    memory_mib: int
    memory_gib: int
    query_s: float
    queries: tuple[int, ...]


ENGINES = (
    EngineKind("mobilenet", 872, 1, 0.02, (1024, 1024, 2048, 2048)),
    EngineKind("mobilenet-quantized", 872, 1, 0.02, (256, 256, 512, 512)),
    EngineKind("resnet50", 8388, 9, 0.03, (4096, 4096, 8192, 8192)),
    EngineKind("ssd-mobilenet", 6994, 7, 0.12, (128, 128, 128, 1024, 1024)),
    EngineKind("ssd-mobilenet-quantized-finetuned", 6994, 7, 0.12, (64, 64, 1024, 1024)),
    EngineKind("ssd-mobilenet-symmetrically-quantized", 6994, 7, 0.12, (512, 512, 4096, 4096)),
)
_START = (MemoryPhase(0, 9 * NS_PER_S), MemoryPhase(318, 6 * NS_PER_S))

_POLICIES: dict[str, tuple[PackingPolicy, SchedulerTiming]] = {
    "exclusive": (Exclusive(), SchedulerTiming()),
    "best_fit": (BestFit(unit_mib=GIB), SchedulerTiming()),
    "pp": (PeakPrediction(), SAMPLING),
    "peak_safe": (PeakSafe(), SchedulerTiming(look_ns=NS_PER_S)),
}


def cases() -> dict[str, list[ReplayResult]]:
    """By policy, the result for each of `EXTRA_PERCENT`."""
    return {
        name: [
            replay(policy, jobs(policy, extra_percent), {"gpu": DEVICE_MIB}, timing) for extra_percent in EXTRA_PERCENT
        ]
        for name, (policy, timing) in _POLICIES.items()
    }


def jobs(policy: PackingPolicy, extra_percent: int) -> list[PackingJob]:
    """All engines in shuffled order, with requests `extra_percent` above what they use."""
    engines = [
        (f"{each.name}-{number}", each, queries) for each in ENGINES for number, queries in enumerate(each.queries)
    ]
    random.Random(SEED).shuffle(engines)
    found = []
    for (name, engine, queries), arrival_ns in zip(engines, arrivals_ns(len(engines)), strict=True):
        requested_mib = request_mib(policy, extra_percent, engine.memory_mib, engine.memory_gib)
        life = (*_START, MemoryPhase(engine.memory_mib, round(queries * engine.query_s * NS_PER_S)))
        found.append(PackingJob(Tenant(name, requested_mib, life), arrival_ns, life, LESS_MIB))
    return found


def ratios(replayed: Sequence[ReplayResult], others: Sequence[ReplayResult]) -> tuple[float, float]:
    """Mean wait and mean 99th percentile of completion times, each as a multiple of the others'."""
    pending = fmean(run.pending_s for run in replayed) / fmean(run.pending_s for run in others)
    return pending, fmean(run.p99_s for run in replayed) / fmean(run.p99_s for run in others)


def use_ratios(replayed: Sequence[ReplayResult], others: Sequence[ReplayResult]) -> tuple[float, float, float, float]:
    """Mean memory in use, busy share, power and energy, each as a multiple of the others'."""
    ours, theirs = _mean_use(replayed), _mean_use(others)
    memory, busy, power, energy = (mine / other for mine, other in zip(ours, theirs, strict=True))
    return memory, busy, power, energy


def _mean_use(replayed: Sequence[ReplayResult]) -> tuple[float, ...]:
    uses = [(SSD_ON_V100.use(run), run.makespan_s) for run in replayed]
    figures = ((use.memory_mib, use.busy, use.energy_kj / seconds, use.energy_kj) for use, seconds in uses)
    return tuple(fmean(each) for each in zip(*figures, strict=True))


def table(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    """A Markdown table with a line for each policy; cells are mean wait / 99th percentile in seconds."""
    lines = [
        "| policy | "
        + " | ".join(f"+{extra} %" for extra in EXTRA_PERCENT)
        + " | pending / pp's | p99 / pp's | pending / peak_safe's | p99 / peak_safe's | restarts |",
        "|" + "---|" * (len(EXTRA_PERCENT) + 6),
    ]
    for name, replayed in runs.items():
        cells = " | ".join(f"{run.pending_s:.0f} / {run.p99_s:.0f}" for run in replayed)
        times = " | ".join(f"{ratio:.1f}" for other in ("pp", "peak_safe") for ratio in ratios(replayed, runs[other]))
        lines.append(f"| {name} | {cells} | {times} | {sum(run.restarts for run in replayed)} |")
    return "\n".join(lines) + "\n"


def run(effort: Effort) -> ExperimentReport:
    """Every policy at every over-provisioning; the arrivals are those of the published seed."""
    runs = cases()
    published = {"best_fit": (8.6, 2.4), "exclusive": (11.0, 3.2)}
    findings = []
    for name, (pending, p99) in published.items():
        ours = ratios(runs[name], runs["peak_safe"])
        for quantity, ratio, theirs in (("pending", ours[0], pending), ("p99 of jobs", ours[1], p99)):
            findings.append(
                gated(
                    f"{quantity} with `{name}`, by that with `peak_safe`",
                    f"{ratio:.1f}",
                    published=f"{theirs:g} (by that with `pp`)",
                    gate=f"at least {theirs:g}",
                    is_met=ratio >= theirs,
                )
            )
        by_pp = ratios(runs[name], runs["pp"])
        findings.append(
            ExperimentFinding(
                f"pending and p99 with `{name}`, by those with `pp`",
                f"{by_pp[0]:.1f} and {by_pp[1]:.1f}",
                f"{pending:g} and {p99:g}",
                why="the duration of a query is not published",
            )
        )
    for name, used in (("best_fit", "1.5, 2.1 and 1.1"), ("exclusive", "2.5, 6.1 and 1.2")):
        for sharing in ("pp", "peak_safe"):
            memory, busy, power, energy = use_ratios(runs[sharing], runs[name])
            findings.append(
                ExperimentFinding(
                    f"memory in use, busy share and power with `{sharing}`, by those with `{name}`",
                    f"{memory:.1f}, {busy:.1f} and {power:.2f} (energy {energy - 1:+.0%})",
                    used if sharing == "pp" else "",
                )
            )
    restarts = sum(each.restarts for each in runs["peak_safe"])
    findings.append(gated("restarts with `peak_safe`", str(restarts), gate="none", is_met=not restarts))
    return ExperimentReport(tuple(findings), (table(runs),))


EXPERIMENT = PaperExperiment(
    "mixed-packing",
    "twenty-five engines of six kinds on one GPU",
    "the slides of Ferikoglou et al., 2021",
    given="the kinds of engines, their queries and their memory",
    assumed="the duration of a query, the start of an engine, the order of arrival, no slowdown beside others; "
    "the busy share of the GPU by the number of engines, and its power, as in `packing`",
    run=run,
)
