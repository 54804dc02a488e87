"""The use of a GPU under packing: memory, busy share and energy, beside the figures that were published.

The busy share of engines that work together follows from that of one by itself, if the kernels of each come at times
of their own. The power of the GPU is taken to rise with its busy share from rest to its limit.
"""

from collections.abc import Iterator, Mapping

import msgspec

from sluice.loadgen.papers.engines.packing_replay import ReplayResult
from sluice.loadgen.papers.experiment import ExperimentFinding, GateVerdict

REST_W, MOST_W = 50.0, 250.0
"""Power of a V100 at rest, about, and the limit of its PCIe form."""


class PublishedUse(msgspec.Struct, frozen=True):
    """Means of a published run: the busy share of the GPU, and the memory in use."""

    busy: float
    memory_mib: int


def busy_share(replayed: ReplayResult, alone: float) -> float:
    """The part of the time of a run in which some engine keeps the GPU busy; each is busy for `alone` of its work."""
    busy_s = sum(seconds * (1 - (1 - alone) ** count) for count, seconds in replayed.working_s.items())
    return busy_s / sum(replayed.working_s.values())


def energy_kj(busy: float, seconds: float) -> float:
    """The energy that a GPU takes in a time, of which it is busy for a share."""
    return (REST_W + (MOST_W - REST_W) * busy) * seconds / 1000


def use_findings(
    replayed: Mapping[str, ReplayResult], published: Mapping[str, PublishedUse], one_by_one: str
) -> Iterator[ExperimentFinding]:
    """Memory, busy share and energy by policy; the policy `one_by_one` tells how busy an engine is by itself."""
    at_work = 1 - replayed[one_by_one].working_s.get(0, 0.0) / sum(replayed[one_by_one].working_s.values())
    alone = published[one_by_one].busy / at_work
    for name, theirs in published.items():
        run = replayed[name]
        error = run.memory_mib / theirs.memory_mib - 1
        yield ExperimentFinding(
            f"memory in use with `{name}`", f"{run.memory_mib:.0f} MiB ({error:+.1%})", f"{theirs.memory_mib} MiB"
        )
        if name == one_by_one:
            continue  # what an engine does by itself is taken from it
        busy = busy_share(run, alone)
        differs = abs(busy - theirs.busy) > 0.01
        yield ExperimentFinding(
            f"busy share of the GPU with `{name}`",
            f"{busy:.1%}",
            f"{theirs.busy:.1%}",
            verdict=GateVerdict.DIFFERS if differs else GateVerdict.SHOWN,
            why=f"one engine is busy for {alone:.1%} of its work, too little for several" if differs else "",
        )
    alone_kj = energy_kj(published[one_by_one].busy, replayed[one_by_one].makespan_s)
    for name, theirs in published.items():
        used_kj = energy_kj(theirs.busy, replayed[name].makespan_s)
        yield ExperimentFinding(
            f"energy with `{name}`, at the published busy share", f"{used_kj:.0f} kJ ({used_kj / alone_kj - 1:+.0%})"
        )
