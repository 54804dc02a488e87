"""Two workflows that share one GPU at 0.1 and 0.9, with hard, elastic and no caps.

K. Satzke et al., Efficient GPU Sharing for Serverless Workflows (HiPS '21), Dynamic Sandbox Resource Allocation: with
elastic shares the workflow at 0.1 took 80 % less time than with hard shares, the workflow at 0.9 took 15 % more, and
GPU utilisation rose by 73.5 %.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sluice.loadgen.papers.engines.gpu_use import GpuPower
from sluice.loadgen.papers.engines.shared_device import BurstJob, ShareCap, SharingResult, run_jobs
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, Plot, gated

PUBLISHED_CHANGE = {"0.1": -0.80, "0.9": 0.15}
"""Change of each workflow's completion time, from hard to elastic shares."""

STEADY = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 1.0))
"""Both need one second of the whole GPU and start together."""
PAUSING = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 0.05, bursts=20, pause_s=0.047))
"""The job at 0.9 runs in bursts of a twentieth: its idle share is lent and must be returned."""
ONE_BY_ONE = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 0.01, bursts=100, pause_s=0.0005))
"""The job at 0.9 is a closed-loop client: it sends the next request when the previous answer arrives."""
BESIDE_HARD = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 1.0, cap=ShareCap.HARD))
"""The job at 0.9 has a hard cap and lends its idle share to the other."""


JOB_GB = 2.0
"""Memory of a share in the paper's Table 3, which its job holds until it ends."""
POWER = GpuPower(off_w=25, on_w=60, busy_w=200)
"""Assumed of a Quadro RTX 6000, whose limit is 260 W."""


class ShareCase(msgspec.Struct, frozen=True):
    """One workload with its batch duration on the whole GPU, and the result under each cap."""

    name: str
    batch_s: float
    results: Mapping[ShareCap, SharingResult]

    def change(self, job: str, cap: ShareCap) -> float:
        """Relative change of a job's completion time against hard shares."""
        return self.results[cap].end_s[job] / self.results[ShareCap.HARD].end_s[job] - 1

    def memory_gb(self, cap: ShareCap) -> float:
        """The mean of the memory in use until the last end."""
        ends = self.results[cap].end_s.values()
        return JOB_GB * sum(ends) / max(ends)

    def energy_j(self, cap: ShareCap) -> float:
        """The energy of the GPU until the last end."""
        last_s = max(self.results[cap].end_s.values())
        return POWER.energy_kj(last_s, last_s, last_s * self.results[cap].utilisation) * 1000


def cases() -> Iterator[ShareCase]:
    """The paper's workload, and workloads in which the lender pays: a running batch is not preempted on its return."""
    for name, jobs, batch_s in (
        ("both steady", STEADY, 0.01),
        ("both steady", STEADY, 0.05),
        ("0.9 pauses", PAUSING, 0.01),
        ("0.9 pauses", PAUSING, 0.05),
        ("0.9 one by one", ONE_BY_ONE, 0.01),
        ("0.9 is hard", BESIDE_HARD, 0.01),
    ):
        yield ShareCase(name, batch_s, {cap: run_jobs(cap, jobs, batch_s) for cap in ShareCap})


def table(runs: Iterable[ShareCase]) -> str:
    """A Markdown table: a line for each experiment and cap."""
    lines = [
        "| experiment | batches | shares | 0.1 job s | change | 0.9 job s | change | GPU busy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in runs:
        for cap, result in case.results.items():
            jobs = (f"{result.end_s[job]:.2f} | {case.change(job, cap):+.1%}" for job in PUBLISHED_CHANGE)
            batches = f"{case.batch_s * 1e3:g} ms"
            lines.append(f"| {case.name} | {batches} | {cap} | {' | '.join(jobs)} | {result.utilisation:.0%} |")
    small, large = PUBLISHED_CHANGE.values()
    lines.append(f"| published | | elastic | | {small:+.0%} | | {large:+.0%} | +73.5 % |")
    return "\n".join(lines) + "\n"


def run(effort: Effort) -> ExperimentReport:
    """Every workload with every cap; chance has no part."""
    runs = list(cases())
    steady = runs[0]
    small, large = (steady.change(job, ShareCap.ELASTIC) for job in PUBLISHED_CHANGE)
    gained = steady.results[ShareCap.ELASTIC].utilisation - steady.results[ShareCap.HARD].utilisation
    energy_j = {cap: steady.energy_j(cap) for cap in ShareCap}
    findings = (
        gated(
            "time of the job with 0.1, elastic against hard",
            f"{small:+.1%}",
            published="-80 %",
            gate="-80 % to within 2 points",
            is_met=abs(small + 0.8) <= 0.02,
        ),
        gated(
            "time of the job with 0.9, elastic against hard",
            f"{large:+.1%}",
            published="+15 %",
            gate="at most +15 %",
            is_met=large <= 0.15,
        ),
        ExperimentFinding("time for which the GPU is busy", f"{gained * 100:+.0f} points", "+73.5 %"),
        ExperimentFinding(
            "mean memory in use, hard and elastic",
            " and ".join(f"{steady.memory_gb(cap):.1f} GB" for cap in (ShareCap.HARD, ShareCap.ELASTIC)),
        ),
        ExperimentFinding(
            "energy of the GPU, elastic against hard",
            f"{energy_j[ShareCap.ELASTIC] / energy_j[ShareCap.HARD] - 1:+.0%} "
            f"({energy_j[ShareCap.HARD]:.0f} J, {energy_j[ShareCap.ELASTIC]:.0f} J)",
        ),
    )
    plot = Plot(
        "times",
        "Times of two jobs of one second of the whole GPU, by the kind of their shares",
        "share of the job",
        "seconds",
        tuple(
            (
                cap.value,
                tuple((float(place), steady.results[cap].end_s[job]) for place, job in enumerate(PUBLISHED_CHANGE)),
            )
            for cap in ShareCap
        ),
        groups=tuple(PUBLISHED_CHANGE),
    )
    return ExperimentReport(findings, (table(runs),), (plot,))


EXPERIMENT = PaperExperiment(
    "shares",
    "two jobs at 0.1 and 0.9 of a GPU, capped, elastic and uncapped",
    "Satzke et al., Efficient GPU Sharing for Serverless Workflows (KNIX), HiPS 2021",
    given="the two shares, and the changes of the times",
    assumed="each job needs one second of the whole GPU, in batches of 10 or 50 ms that are not stopped; a job holds 2 "
    "GB until it ends; the GPU takes 60 W while there are jobs, and 260 W when it is busy",
    run=run,
)
