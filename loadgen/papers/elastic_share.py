"""Two workflows on one GPU at 0.1 and 0.9 of it, with hard shares, elastic ones and none.

K. Satzke et al., Efficient GPU Sharing for Serverless Workflows (HiPS '21), Dynamic Sandbox Resource Allocation: with
elastic shares the workflow with 0.1 took 80 % less time than with hard ones, that with 0.9 took 15 % more, and the GPU
was busier by 73.5 %.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sluice.loadgen.papers.shared_device import BurstJob, Cap, Shared, run

PUBLISHED_CHANGE = {"0.1": -0.80, "0.9": 0.15}
"""Of the time that each workflow takes, from hard shares to elastic ones."""

STEADY = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 1.0))
"""Both take a second of the whole GPU and start together."""
PAUSING = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 0.05, bursts=20, pause_s=0.047))
"""The one with 0.9 as bursts of a twentieth: what it leaves idle is lent, and has to be given back."""
ONE_BY_ONE = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 0.01, bursts=100, pause_s=0.0005))
"""The one with 0.9 as a client that sends the next request when it has the answer to the one before."""
BESIDE_HARD = (BurstJob("0.1", 0.1, 1.0), BurstJob("0.9", 0.9, 1.0, cap=Cap.HARD))
"""The one with 0.9 keeps its cap and lends what it leaves idle to the other."""


class ShareCase(msgspec.Struct, frozen=True):
    """An experiment: jobs, how long batches take on the whole GPU, and what each cap gives."""

    name: str
    batch_s: float
    shared: Mapping[Cap, Shared]

    def change(self, job: str, cap: Cap) -> float:
        """Of the time that a job takes, from hard shares."""
        return self.shared[cap].end_s[job] / self.shared[Cap.HARD].end_s[job] - 1


def cases() -> Iterator[ShareCase]:
    """That of the paper, and those that cost whoever lends: a batch that runs is not taken off for who comes back."""
    for name, jobs, batch_s in (
        ("both steady", STEADY, 0.01),
        ("both steady", STEADY, 0.05),
        ("0.9 pauses", PAUSING, 0.01),
        ("0.9 pauses", PAUSING, 0.05),
        ("0.9 one by one", ONE_BY_ONE, 0.01),
        ("0.9 is hard", BESIDE_HARD, 0.01),
    ):
        yield ShareCase(name, batch_s, {cap: run(cap, jobs, batch_s) for cap in Cap})


def table(runs: Iterable[ShareCase]) -> str:
    """A Markdown table: a line for each experiment and cap."""
    lines = [
        "| experiment | batches | shares | 0.1 job s | change | 0.9 job s | change | GPU busy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in runs:
        for cap, shared in case.shared.items():
            jobs = (f"{shared.end_s[job]:.2f} | {case.change(job, cap):+.1%}" for job in PUBLISHED_CHANGE)
            batches = f"{case.batch_s * 1e3:g} ms"
            lines.append(f"| {case.name} | {batches} | {cap} | {' | '.join(jobs)} | {shared.utilisation:.0%} |")
    small, large = PUBLISHED_CHANGE.values()
    lines.append(f"| published | | elastic | | {small:+.0%} | | {large:+.0%} | +73.5 % |")
    return "\n".join(lines) + "\n"
