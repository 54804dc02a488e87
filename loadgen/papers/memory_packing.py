"""Thirty inference engines on one GPU: the experiment of Ferikoglou et al., replayed with every packing policy.

A. Ferikoglou et al., Resource Aware GPU Scheduling in Kubernetes Infrastructure (PARMA-DITAM 2021), whose logs are
public (github.com/aferikoglou/ECE-Diploma). Thirty engines with SSD-MobileNet arrive 20 to 40 s apart on a V100. An
engine uses 6994 MiB; its owner requests that much, or up to 250 % more. The logs give the mean run time of an engine
in each run, the memory of its phases and the arrivals, which follow from the seed. They also give the busy share and
the power of the GPU each second. The rest is simulated.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import msgspec

from sluice.loadgen.papers.engines.gpu_use import SSD_ON_V100, GpuUse, use_findings
from sluice.loadgen.papers.engines.packing_replay import PackingJob, ReplayResult, SchedulerTiming, replay
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.models.units import NS_PER_S
from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.cbp import CorrelationBased
from sluice.mps.packing.exclusive import Exclusive
from sluice.mps.packing.first_fit_decreasing import FirstFitDecreasing
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policy import PackingPolicy
from sluice.mps.packing.pp import PeakPrediction
from sluice.mps.packing.tenant import MemoryPhase, Tenant

DEVICE_MIB = 32_510
ENGINE_MIB = 6_994
ENGINE_GIB = 7
ENGINES = 30
SEED = 2020
EXTRA_PERCENT = (0, 50, 100, 150, 200, 250)
"""Over-provisioning of the requests: memory requested beyond what an engine uses."""

GIB = 1024
_AROUND_S = 5
"""Time to start a container and to notice its end: 4.2 to 5.5 s on average in the twelve runs without restarts."""
_START = ((0, 9), (318, 6), (700, 6))
"""MiB and seconds: the container and imports, the CUDA context, the model; then TensorFlow takes its memory pool.

Rounded from the run of `exclusive` at 0 %, whose samples are some seconds apart: 318 MiB for 6 to 9 s, then 400 to
850 MiB for as long in half of the engines. A start is taken to be slower as its run is: with `best_fit` at 0 % engines
hold their memory for 137 s on average, which makes 27 s for the start."""
LESS_MIB = (2_887, 852)
"""Smaller pools that the allocator tries where its pool does not fit: the memory that such an engine frees at its end.
"""


class PublishedRun(msgspec.Struct, frozen=True):
    """Means and totals of a published run. Only `run_s` is an input of the replay."""

    run_s: float
    pending_s: int | None = None
    makespan_s: int | None = None
    restarts: int | None = None


class PackingCase(msgspec.Struct, frozen=True):
    """One run: a policy and an over-provisioning, with the published and the replayed figures.

    A run that was never published has only the `run_s` of the published run that is most like it.
    """

    policy: str
    extra_percent: int
    published: PublishedRun
    replayed: ReplayResult


_DEFAULT = ((131.5, 1510, 4077), (140.2, 1627, 4351), (148.8, 1708, 4626), (153.0, 1799, 4787), (157.3, 1909, 4905),
            (157.3, 1916, 4892))  # fmt: skip
_ALIBABA = ((158.9, 132, 1334), (140.0, 205, 1516), (153.0, 735, 2411), (153.1, 1848, 4796), (153.2, 1891, 4806),
            (147.8, 1717, 4597))  # fmt: skip
_CUSTOM = ((172.4, 40, 1150, 3), (173.1, 58, 1193, 10), (170.7, 66, 1201, 13), (187.3, 77, 1235, 20),
           (183.3, 73, 1189, 19), (176.5, 122, 1330, 6))  # fmt: skip

_EXCLUSIVE = tuple(PublishedRun(*run, restarts=0) for run in _DEFAULT)
_BEST_FIT = tuple(PublishedRun(*run, restarts=0) for run in _ALIBABA)
_PP = tuple(PublishedRun(*run) for run in _CUSTOM)
_CBP = tuple(PublishedRun(run.run_s) for run in _PP)
_FIRST_FIT = tuple(PublishedRun(run.run_s) for run in _BEST_FIT)
_PEAK_SAFE = (PublishedRun(_BEST_FIT[0].run_s),) * len(EXTRA_PERCENT)

USE = {
    "exclusive": GpuUse(5_959, 0.043, 163.0),
    "best_fit": GpuUse(21_567, 0.598, 69.4),
    "pp": GpuUse(22_868, 0.689, 59.0),
}
"""Without over-provisioning, as logged: these runs have no part in `SSD_ON_V100`."""

SAMPLING = SchedulerTiming(look_ns=NS_PER_S, pause_ns=5 * NS_PER_S)
_RUNS: tuple[tuple[PackingPolicy, str, SchedulerTiming, Sequence[PublishedRun]], ...] = (
    (Exclusive(), "exclusive", SchedulerTiming(), _EXCLUSIVE),
    (BestFit(unit_mib=GIB), "best_fit", SchedulerTiming(), _BEST_FIT),
    (FirstFitDecreasing(), "first_fit_decreasing", SchedulerTiming(), _FIRST_FIT),
    (CorrelationBased(), "cbp", SAMPLING, _CBP),
    (PeakPrediction(), "pp", SAMPLING, _PP),
    (PeakSafe(), "peak_safe", SchedulerTiming(look_ns=NS_PER_S), _PEAK_SAFE),
)


def cases() -> Iterator[PackingCase]:
    """Every policy at every over-provisioning."""
    for policy, name, timing, runs in _RUNS:
        for extra_percent, published in zip(EXTRA_PERCENT, runs, strict=True):
            result = replay_engines(policy, timing, extra_percent, published.run_s)
            yield PackingCase(name, extra_percent, published, result)


def replay_engines(
    policy: PackingPolicy, timing: SchedulerTiming, extra_percent: int, run_s: float, spread_s: float = 0.0
) -> ReplayResult:
    """Replay thirty engines with run times of mean `run_s` and standard deviation `spread_s`."""
    # Policies see the mean life of an engine, as measurements would give it; only `peak_safe` uses it.
    chance = random.Random(SEED + extra_percent)
    tenants = (
        Tenant(f"engine-{number}", request_mib(policy, extra_percent), engine_life(run_s)) for number in range(ENGINES)
    )
    jobs = [
        PackingJob(tenant, arrival_ns, engine_life(chance.gauss(run_s, spread_s)), LESS_MIB)
        for tenant, arrival_ns in zip(tenants, arrivals_ns(), strict=True)
    ]
    return replay(policy, jobs, {"gpu": DEVICE_MIB}, timing)


def request_mib(
    policy: PackingPolicy, extra_percent: int, memory_mib: int = ENGINE_MIB, memory_gib: int = ENGINE_GIB
) -> int:
    """The memory that an engine requests, at most the device; Alibaba's scheduler takes whole GiB."""
    factor = 1 + extra_percent / 100
    if isinstance(policy, BestFit):
        return min(DEVICE_MIB // GIB, int(memory_gib * factor)) * GIB
    return min(DEVICE_MIB, int(memory_mib * factor))


def arrivals_ns(count: int = ENGINES) -> list[int]:
    """Arrival times of the engines, drawn as Python 2's `randint` does, which the experiment used."""
    chance = random.Random(SEED)
    times = [0]
    for _ in range(count - 1):
        times.append(times[-1] + (20 + int(chance.random() * 21)) * NS_PER_S)
    return times


def engine_life(run_s: float) -> tuple[MemoryPhase, ...]:
    """The phases of an engine whose container runs for `run_s`."""
    slower = run_s / _EXCLUSIVE[0].run_s
    start = [MemoryPhase(mib, round(seconds * slower * NS_PER_S)) for mib, seconds in _START]
    rest_s = run_s + _AROUND_S - sum(seconds for _, seconds in _START) * slower
    return (*start, MemoryPhase(ENGINE_MIB, round(rest_s * NS_PER_S)))


def table(runs: Sequence[PackingCase]) -> str:
    """A Markdown table with the published and the replayed figures of each run."""
    lines = [
        "| policy | requested | pending s, published | replayed | makespan s, published | replayed | error"
        " | restarts, published | replayed | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(run) for run in runs),
    ]
    return "\n".join(lines) + "\n"


def _line(run: PackingCase) -> str:
    published, replayed = run.published, run.replayed
    off = "" if published.makespan_s is None else f"{replayed.makespan_s / published.makespan_s - 1:+.1%}"
    cells = (
        run.policy,
        f"+{run.extra_percent} %",
        _cell(published.pending_s),
        f"{replayed.pending_s:.0f}",
        _cell(published.makespan_s),
        f"{replayed.makespan_s:.0f}",
        off,
        _cell(published.restarts),
        str(replayed.restarts),
        str(replayed.peak_mib),
    )
    return f"| {' | '.join(cells)} |"


def _cell(value: int | None) -> str:
    return "" if value is None else str(value)


def run(effort: Effort) -> ExperimentReport:
    """Every policy at every over-provisioning; the arrivals are those of the published seed."""
    runs = {(each.policy, each.extra_percent): each for each in cases()}
    return ExperimentReport(tuple(_findings(runs)), (table(list(runs.values())),))


def _findings(runs: Mapping[tuple[str, int], PackingCase]) -> Iterator[ExperimentFinding]:
    off = {
        name: max(
            abs(each.replayed.makespan_s / each.published.makespan_s - 1)
            for (policy, _), each in runs.items()
            if policy == name and each.published.makespan_s is not None
        )
        for name in ("exclusive", "best_fit")
    }
    for name, error in off.items():
        yield gated(f"makespans with `{name}`, error at most", f"{error:.1%}", gate="at most 2 %", is_met=error <= 0.02)
    most = EXTRA_PERCENT[-1]
    theirs, ours = runs["best_fit", most].published.pending_s, runs["peak_safe", most].replayed
    assert theirs is not None, "the run is published"
    yield gated(
        f"pending of an engine at +{most} %, best fit by `peak_safe`",
        f"{theirs / ours.pending_s:.1f} ({ours.pending_s:.0f} s)",
        published=f"{theirs} s with best fit, {runs['pp', most].published.pending_s} s with `pp`",
        gate="at least 8.6",
        is_met=theirs / ours.pending_s >= 8.6,
    )
    restarts = sum(each.replayed.restarts for (policy, _), each in runs.items() if policy == "peak_safe")
    published = sum(each.published.restarts or 0 for (policy, _), each in runs.items() if policy == "pp")
    yield gated(
        "restarts for lack of memory with `peak_safe`, all runs",
        str(restarts),
        published=f"{published} with `pp`",
        gate="none",
        is_met=not restarts,
    )
    by_forecast = [each for (policy, _), each in runs.items() if policy == "pp"]
    yield ExperimentFinding(
        "pending of an engine and makespan with `pp`, means of all runs, and all restarts",
        f"{fmean(each.replayed.pending_s for each in by_forecast):.0f} s, "
        f"{fmean(each.replayed.makespan_s for each in by_forecast):.0f} s, "
        f"{sum(each.replayed.restarts for each in by_forecast)}",
        f"{fmean(each.published.pending_s or 0 for each in by_forecast):.0f} s, "
        f"{fmean(each.published.makespan_s or 0 for each in by_forecast):.0f} s, {published}",
    )
    yield from use_findings({name: SSD_ON_V100.use(runs[name, 0].replayed) for name in USE}, USE)
    saved = SSD_ON_V100.use(ours).energy_kj / 177.4 - 1  # as logged
    yield ExperimentFinding(
        f"energy at +{most} %, `peak_safe` against best fit as logged", f"{saved:+.0%}", "-53 % (sharing at its best)"
    )


EXPERIMENT = PaperExperiment(
    "packing",
    "thirty engines on one GPU by every packing policy",
    "Ferikoglou et al., Resource Aware GPU Scheduling in Kubernetes Infrastructure, PARMA-DITAM 2021, and its logs",
    given="engines, arrivals, memory and its phases, mean run times of the published runs; from the runs with "
    "over-provisioning alone, the busy share of the GPU by the number of engines at work (4.1, 36.5, 64.8, 80.2, 92.4 "
    "and 95.3 %) and its power (27 W without an engine, with one 39.7 W and 18.1 W times the busy share)",
    assumed="5 s around each engine to start a container and to see its end; its start is slower as its run is; "
    "`peak_safe` knows the peaks",
    run=run,
)
