"""The use of a GPU under packing: memory, busy share and energy.

The busy share is given by the number of engines at work, as the driver's counter logs it. It cannot follow from that of
one engine: two keep the GPU busy for nine times as long, since processes that take turns on it count as work. The power
is linear in the busy share.
"""

from collections.abc import Iterator, Mapping

import msgspec

from sluice.loadgen.papers.engines.packing_replay import ReplayResult
from sluice.loadgen.papers.experiment import ExperimentFinding, gated

MOST_POINTS = 5.0
MOST_ERROR = 0.05
"""Gates: the most by which the busy share may be off, and memory and energy."""


class GpuUse(msgspec.Struct, frozen=True):
    """Means over a run of the memory in use and of the busy share, and the energy of the run."""

    memory_mib: float
    busy: float
    energy_kj: float


class GpuPower(msgspec.Struct, frozen=True):
    """The power of a GPU in W: without any process, with one that waits, and what a busy GPU adds to that."""

    off_w: float
    on_w: float
    busy_w: float

    def energy_kj(self, seconds: float, on_s: float, busy_s: float) -> float:
        """The energy of a time, in `on_s` of which there are processes, and in `busy_s` of which they use the GPU."""
        return (self.off_w * (seconds - on_s) + self.on_w * on_s + self.busy_w * busy_s) / 1000


class LoggedGpu(msgspec.Struct, frozen=True):
    """A GPU as its logs describe it: its busy share by the number of engines at work (the last for more), its power."""

    busy: tuple[float, ...]
    power: GpuPower

    def use(self, replayed: ReplayResult) -> GpuUse:
        """The use of the GPU in a replay."""
        seconds = sum(replayed.working_s.values())
        last = len(self.busy) - 1
        busy_s = sum(time_s * self.busy[min(count, last)] for count, time_s in replayed.working_s.items())
        return GpuUse(replayed.memory_mib, busy_s / seconds, self.power.energy_kj(seconds, replayed.occupied_s, busy_s))


SSD_ON_V100 = LoggedGpu((0.0, 0.041, 0.365, 0.648, 0.802, 0.924, 0.953), GpuPower(27.0, 39.7, 18.1))
"""Engines with SSD-MobileNet on a V100: means of the logs of the runs with over-provisioning (see `memory_packing`).

Busy shares are those of 98 to 29 732 samples each. The power is a fit by least squares; what a sample has beyond it has
a standard deviation of 4.2 W."""


def use_findings(replayed: Mapping[str, GpuUse], logged: Mapping[str, GpuUse]) -> Iterator[ExperimentFinding]:
    """Memory, busy share and energy by policy, beside those of the logs."""
    for name, theirs in logged.items():
        ours = replayed[name]
        points = (ours.busy - theirs.busy) * 100
        yield gated(
            f"busy share of the GPU with `{name}`",
            f"{ours.busy:.1%} ({points:+.1f} points)",
            published=f"{theirs.busy:.1%}",
            gate=f"to within {MOST_POINTS:g} points",
            is_met=abs(points) <= MOST_POINTS,
        )
        yield _within(f"memory in use with `{name}`, MiB", ours.memory_mib, theirs.memory_mib)
        yield _within(f"energy with `{name}`, kJ", ours.energy_kj, theirs.energy_kj)


def _within(what: str, ours: float, theirs: float) -> ExperimentFinding:
    error = ours / theirs - 1
    return gated(
        what,
        f"{ours:.1f} ({error:+.1%})",
        published=f"{theirs:g}",
        gate=f"to within {MOST_ERROR:.0%}",
        is_met=abs(error) <= MOST_ERROR,
    )
