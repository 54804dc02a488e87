"""Execution times, memory and use by share of a GPU, and the overhead of sharing by the paper's own formula.

K. Satzke et al., Efficient GPU Sharing for Serverless Workflows (HiPS 2021), runs functions on 1, 2, 4, 6 and 8 shares
of a GPU, at 100, 50, 25, 15 and 12.5 % each, and gives the overhead of sharing as (t_shared - t_bare) / t_bare. The
isolation of 2, 4 and 8 shares is shown by their memory and use, and what does not fit is refused. Shares of this
machine are measured beside that (`engines.live_shares`).
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from sluice.loadgen.papers.engines.live_loads import load_findings
from sluice.loadgen.papers.engines.live_shares import (
    GPU,
    ServerAnswer,
    SharedTimes,
    emulated_shares,
    resize,
    share_core,
    time_jobs,
)
from sluice.loadgen.papers.engines.shared_device import BurstJob, ShareCap, run_jobs
from sluice.loadgen.papers.experiment import (
    Effort,
    ExperimentFinding,
    ExperimentReport,
    GateVerdict,
    PaperExperiment,
    Plot,
    gated,
    timed,
)
from sluice.models.errors import InfeasibleLayout
from sluice.mps.partitions.capacity_check import FreeCapacity, check_capacity
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import MpsPartition

SHARES = {1: 1.0, 2: 0.5, 4: 0.25, 6: 0.15, 8: 0.125}
"""The share of each job, by the number of jobs that share the GPU."""
BATCH_S = 0.01
CARD_GB = 24
"""Memory of a Quadro RTX 6000."""
ISOLATED_GB = {2: 7.68, 4: 3.84, 8: 1.54}
"""Table 4: memory of each share, by their number; it does not halve at last."""
GREEDY = 4.0
"""A job that does not keep to its work has that many times as much as the others."""
BATCH_LIVE_S = 0.1
"""The time of a batch on the whole of the emulated accelerator."""


class MeasuredOverhead(msgspec.Struct, frozen=True):
    """A row of Table 2: times on a share of the whole GPU and on the bare GPU, and the overhead that is printed."""

    framework: str
    shared_s: float
    bare_s: float
    printed: float
    why: str = ""

    @property
    def overhead(self) -> float:
        """The overhead by the formula, in percent."""
        return (self.shared_s - self.bare_s) / self.bare_s * 100


TABLE_2 = (
    MeasuredOverhead("TensorFlow", 300.0, 298.2, 0.67, "the printed times give less"),
    MeasuredOverhead("PyTorch", 222.3, 189.1, 14.9, "the printed overhead is a part of the shared time"),
    MeasuredOverhead(
        "MXNet",
        39.32,
        33.50,
        14.8,
        "the columns are swapped: as printed, sharing takes 14.80 % less",
    ),
)


def times_s() -> dict[int, float]:
    """The time of the last of equal jobs that need one second of the whole GPU, by their number."""
    found = {}
    for count, share in SHARES.items():
        jobs = [BurstJob(f"job{number}", share, 1.0) for number in range(count)]
        found[count] = max(run_jobs(ShareCap.HARD, jobs, BATCH_S).end_s.values())
    return found


def others_s(cap: ShareCap, count: int, work_s: float) -> float:
    """The time of jobs of one second of the whole GPU, of `count` on equal shares, of which one needs `work_s`."""
    jobs = [BurstJob(f"job{number}", 1 / count, 1.0 if number else work_s) for number in range(count)]
    ended_s = run_jobs(cap, jobs, BATCH_S).end_s
    return max(ended_s[job.name] for job in jobs[1:])


def fits_card(count: int, more: int = 0) -> bool:
    """Say whether the card can have the shares of Table 4, and `more` of the same, by what the server checks."""
    shares = [
        MpsPartition(f"share{number}", GPU, 100 // count, memory_mb=ISOLATED_GB[count] * 1024)
        for number in range(count + more)
    ]
    try:
        check_capacity(shares, {GPU: FreeCapacity(memory_mb=CARD_GB * 1024)})
    except InfeasibleLayout:
        return False
    return True


def run(effort: Effort) -> ExperimentReport:
    """Chance has no part; the live rows have figures of their own in each run."""
    found = times_s()
    error = max(abs(time_s * SHARES[count] / found[1] - 1) for count, time_s in found.items())
    findings = [
        gated(
            "time by 1 / share, error at most",
            f"{error:.1%}",
            gate="at most 15 %",
            is_met=error <= 0.15,
        )
    ]
    for row in TABLE_2:
        differs = round(row.overhead, 2) != row.printed
        verdict = GateVerdict.DIFFERS if differs else GateVerdict.SHOWN
        findings.append(
            ExperimentFinding(
                f"overhead of sharing, {row.framework}, by the printed times",
                f"{row.overhead:.2f} %",
                f"{row.printed:g} %",
                verdict=verdict,
                why=row.why,
            )
        )
    findings += _isolation()
    findings += _emulated(effort)
    if not effort.quick:
        findings += [*_cores(), *load_findings(available_cores()[0])]
    lines = ["| jobs | share | time of a job | by 1 / share |", "|---|---|---|---|"]
    lines += [
        f"| {count} | {SHARES[count]:.1%} | {time_s:.2f} s | {found[1] / SHARES[count]:.2f} s |"
        for count, time_s in found.items()
    ]
    plot = Plot(
        "time-by-jobs",
        "Time of a job that shares the GPU with equal ones",
        "jobs on the GPU",
        "seconds",
        (
            ("played", tuple(enumerate(found.values()))),
            ("by 1 / share", tuple((at, found[1] / share) for at, share in enumerate(SHARES.values()))),
        ),
        groups=tuple(map(str, SHARES)),
        beside="Figure 3",
    )
    return ExperimentReport(tuple(findings), ("\n".join(lines) + "\n",), (plot,))


def _isolation() -> Iterator[ExperimentFinding]:
    for count, memory_gb in ISOLATED_GB.items():
        equal_s, greedy_s, lent_s = (
            others_s(cap, count, work_s)
            for cap, work_s in ((ShareCap.HARD, 1.0), (ShareCap.HARD, GREEDY), (ShareCap.ELASTIC, GREEDY))
        )
        slower = greedy_s / equal_s - 1
        yield gated(
            f"{count} shares: use of the GPU by one, and time of the others if it has {GREEDY:g} times the work",
            f"{1 / equal_s:.1%}; {slower:+.1%} (elastic {lent_s / equal_s - 1:+.1%})",
            published=f"{1 / count:.1%}; unchanged",
            gate="at most 1 % more",
            is_met=slower <= 0.01,
        )
        refused = not fits_card(count), not fits_card(count, more=1)
        yield gated(
            f"{count} shares with {memory_gb} GB each: memory, and one share more",
            f"{count * memory_gb:.2f} of {CARD_GB} GB, {'refused' if refused[1] else 'taken'}",
            gate="refused",
            is_met=refused == (False, True),
        )


def _emulated(effort: Effort) -> Iterator[ExperimentFinding]:
    found: dict[int, SharedTimes] = {}
    answer = ServerAnswer(0, "{}")
    for count in (2,) if effort.quick else (1, 2, 4, 8):
        batches, rounds = max(1, 8 // count), 1 if effort.quick else 3
        with (
            tempfile.TemporaryDirectory() as folder,
            emulated_shares(Path(folder), [100 // count] * count, BATCH_LIVE_S * count) as url,
        ):
            found[count] = time_jobs(url, Path(folder), count, batches, rounds)
            if count == 2:
                answer = resize(url, "share0", {"share_percent": 70})
    yield gated(
        "a server whose share of 50 % asks for 70 % beside another of 50 %",
        f"{answer.status}: {answer.error}",
        published="refused",
        gate="409 with the numbers",
        is_met=answer.status == 409 and all(figure in answer.error for figure in ("120 %", "70 %", "50 %", "100 %")),
    )
    by_share = {count: median(times.shared_s) / (BATCH_LIVE_S * count) for count, times in found.items()}
    error = max(abs(ratio - 1) for ratio in by_share.values())
    longest_ms = max((ratio - 1) * BATCH_LIVE_S * count for count, ratio in by_share.items()) * 1000
    yield timed(
        effort,
        f"a batch on {_listed(found)} emulated shares of a server by 1 / share, error at most",
        f"{error:.1%}",
        gate="at most 15 %",
        is_met=error <= 0.15,
        why=f"a batch takes up to {longest_ms:.1f} ms more than the model sleeps",
    )
    yield ExperimentFinding(
        f"overhead of sharing on a server, {_listed(found)} emulated shares",
        ", ".join(f"{times.overhead:+.2%}" for times in found.values()),
        "0.60 to 17.56 %",
    )


def _cores() -> Iterator[ExperimentFinding]:
    with tempfile.TemporaryDirectory() as folder:
        times = share_core(Path(folder), available_cores()[0], batches=200)
    yield ExperimentFinding(
        "overhead of a partition of one core on a server, by the worker's time and by the client's",
        f"{times.in_worker.overhead:+.1%} and {times.at_client.overhead:+.1%}",
        "0.60 to 17.56 %",
    )


def _listed(found: dict[int, SharedTimes]) -> str:
    return ", ".join(map(str, found))


EXPERIMENT = PaperExperiment(
    "knix",
    "the time of a job is as one over its share of the GPU",
    "Satzke et al., Efficient GPU Sharing for Serverless Workflows (KNIX), HiPS 2021, Table 2 and Figure 3",
    given="the shares, the times and the overheads of Table 2, the memory of the shares of Table 4",
    assumed="a job needs one second of the whole GPU, in batches of 10 ms. On the server, a model that sleeps and a "
    "socket in the place of the MPS daemon emulate the accelerator, of which a batch needs 100 ms as a whole; on cores "
    "there is a convolutional network with weights of 94 MB, and functions in Python load as many on emulated shares",
    run=run,
    measures_machine=True,
)
