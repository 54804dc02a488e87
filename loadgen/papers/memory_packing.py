"""Thirty inference engines on one GPU: the experiment of Ferikoglou et al., played again with every packing policy.

A. Ferikoglou et al., Resource Aware GPU Scheduling in Kubernetes Infrastructure (PARMA-DITAM 2021), whose logs are
public (github.com/aferikoglou/ECE-Diploma). Thirty engines with SSD-MobileNet arrive 20 to 40 s apart on a V100; their
owners ask for the 6994 MiB that one takes, or for up to 250 % more. From the logs come how long an engine runs in each
run (the mean), the memory of its phases, and the arrivals, which are those of the seed; the rest is played.
"""

import random
from collections.abc import Iterator, Sequence

import msgspec

from sluice.loadgen.papers.replay import Replayed, ReplayJob, SchedulingPace, replay
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
"""How much more than an engine takes is asked for."""

GIB = 1024
_AROUND_S = 5
"""To start a container, and to tell that it is done: together 4.2 to 5.5 s on average in the twelve runs without
restarts."""
_START = ((0, 9), (318, 6), (700, 6))
"""MiB and seconds: the container and imports, the CUDA context, the model; then TensorFlow takes its pool.

Rounded from the run of `exclusive` at 0 %, whose samples tell them to some seconds: 318 MiB for 6 to 9 s, then in half
of the engines 400 to 850 for as long."""
LESS_MIB = (2_887, 852)
"""Where its pool does not fit, the allocator tries smaller ones: what comes free when such an engine ends."""


class Logged(msgspec.Struct, frozen=True):
    """Means and totals of a run that was published; `run_s` is the only one that is played from."""

    run_s: float
    pending_s: int | None = None
    makespan_s: int | None = None
    restarts: int | None = None


class PackingCase(msgspec.Struct, frozen=True):
    """A run: the policy, how much more than it takes an engine asks for, what was published and what the replay gives.

    Runs that were never made have the `run_s` of the one that is most like them, and nothing else.
    """

    policy: str
    extra_percent: int
    logged: Logged
    replayed: Replayed


_DEFAULT = ((131.5, 1510, 4077), (140.2, 1627, 4351), (148.8, 1708, 4626), (153.0, 1799, 4787), (157.3, 1909, 4905),
            (157.3, 1916, 4892))  # fmt: skip
_ALIBABA = ((158.9, 132, 1334), (140.0, 205, 1516), (153.0, 735, 2411), (153.1, 1848, 4796), (153.2, 1891, 4806),
            (147.8, 1717, 4597))  # fmt: skip
_CUSTOM = ((172.4, 40, 1150, 3), (173.1, 58, 1193, 10), (170.7, 66, 1201, 13), (187.3, 77, 1235, 20),
           (183.3, 73, 1189, 19), (176.5, 122, 1330, 6))  # fmt: skip

_EXCLUSIVE = tuple(Logged(*run, restarts=0) for run in _DEFAULT)
_BEST_FIT = tuple(Logged(*run, restarts=0) for run in _ALIBABA)
_PP = tuple(Logged(*run) for run in _CUSTOM)
_CROWDED = tuple(Logged(run.run_s) for run in _PP)
_BOOKED = tuple(Logged(run.run_s) for run in _BEST_FIT)
_FOUR_AT_A_TIME = (Logged(_BEST_FIT[0].run_s),) * len(EXTRA_PERCENT)

WATCHED = SchedulingPace(look_ns=NS_PER_S, pause_ns=5 * NS_PER_S)
_RUNS: tuple[tuple[PackingPolicy, str, SchedulingPace, Sequence[Logged]], ...] = (
    (Exclusive(), "exclusive", SchedulingPace(), _EXCLUSIVE),
    (BestFit(unit_mib=GIB), "best_fit", SchedulingPace(), _BEST_FIT),
    (FirstFitDecreasing(), "first_fit_decreasing", SchedulingPace(), _BOOKED),
    (CorrelationBased(), "cbp", WATCHED, _CROWDED),
    (PeakPrediction(), "pp", WATCHED, _PP),
    (PeakSafe(), "peak_safe", SchedulingPace(look_ns=NS_PER_S), _FOUR_AT_A_TIME),
)


def cases() -> Iterator[PackingCase]:
    """Every policy at every excess."""
    for policy, name, pace, runs in _RUNS:
        for extra_percent, logged in zip(EXTRA_PERCENT, runs, strict=True):
            yield PackingCase(name, extra_percent, logged, play(policy, pace, extra_percent, logged.run_s))


def play(
    policy: PackingPolicy, pace: SchedulingPace, extra_percent: int, run_s: float, spread_s: float = 0.0
) -> Replayed:
    """Thirty engines that ask for so much more than they take, each of which runs for `run_s` with that deviation."""
    # What was measured of engines tells a policy their mean life; only `peak_safe` goes by it.
    chance = random.Random(SEED + extra_percent)
    tenants = (Tenant(f"engine-{number}", request_mib(policy, extra_percent), life(run_s)) for number in range(ENGINES))
    jobs = [
        ReplayJob(tenant, arrival_ns, life(chance.gauss(run_s, spread_s)), LESS_MIB)
        for tenant, arrival_ns in zip(tenants, arrivals_ns(), strict=True)
    ]
    return replay(policy, jobs, {"gpu": DEVICE_MIB}, pace)


def request_mib(
    policy: PackingPolicy, extra_percent: int, memory_mib: int = ENGINE_MIB, memory_gib: int = ENGINE_GIB
) -> int:
    """What an engine asks for: whole GiB from Alibaba's scheduler, at most the device."""
    factor = 1 + extra_percent / 100
    if isinstance(policy, BestFit):
        return min(DEVICE_MIB // GIB, int(memory_gib * factor)) * GIB
    return min(DEVICE_MIB, int(memory_mib * factor))


def arrivals_ns(count: int = ENGINES) -> list[int]:
    """When engines arrive; the generator of the experiment, Python 2's `randint`, is one `random` a number."""
    chance = random.Random(SEED)
    times = [0]
    for _ in range(count - 1):
        times.append(times[-1] + (20 + int(chance.random() * 21)) * NS_PER_S)
    return times


def life(run_s: float) -> tuple[MemoryPhase, ...]:
    """The phases of an engine whose container runs for so long."""
    start = [MemoryPhase(mib, seconds * NS_PER_S) for mib, seconds in _START]
    rest_s = run_s + _AROUND_S - sum(seconds for _, seconds in _START)
    return (*start, MemoryPhase(ENGINE_MIB, round(rest_s * NS_PER_S)))


def table(runs: Sequence[PackingCase]) -> str:
    """A Markdown table, a line for each run, with published figures beside those of the replay."""
    lines = [
        "| policy | asked for | pending s, published | replayed | makespan s, published | replayed | off"
        " | restarts, published | replayed | most MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(run) for run in runs),
    ]
    return "\n".join(lines) + "\n"


def _line(run: PackingCase) -> str:
    logged, replayed = run.logged, run.replayed
    off = "" if logged.makespan_s is None else f"{replayed.makespan_s / logged.makespan_s - 1:+.1%}"
    cells = (
        run.policy,
        f"+{run.extra_percent} %",
        _cell(logged.pending_s),
        f"{replayed.pending_s:.0f}",
        _cell(logged.makespan_s),
        f"{replayed.makespan_s:.0f}",
        off,
        _cell(logged.restarts),
        str(replayed.restarts),
        str(replayed.peak_mib),
    )
    return f"| {' | '.join(cells)} |"


def _cell(value: int | None) -> str:
    return "" if value is None else str(value)
