"""What takes memory of devices: models and jobs, what they ask for and what was measured of them."""

import math
from itertools import accumulate

import msgspec


class Phase(msgspec.Struct, frozen=True):
    """A part of a life in which memory stays below `memory_mib`; without `duration_ns` the last one, which lasts."""

    memory_mib: int
    duration_ns: int | None = None


class Tenant(msgspec.Struct, frozen=True):
    """A model or a job.

    `request_mib` is what its owner asks for, and `share` the part of a device's compute. `phases` are the memory over
    its life, as measured in earlier ones, and `usage` samples of it in MiB, taken at the same times as those of all
    other tenants; both are empty when nothing was measured.
    """

    name: str
    request_mib: int
    phases: tuple[Phase, ...] = ()
    usage: tuple[float, ...] = ()
    share: float = 0.0

    @property
    def life(self) -> tuple[Phase, ...]:
        """Its phases; while nothing was measured, one that lasts, with what it asks for."""
        return self.phases or (Phase(self.request_mib),)

    @property
    def peak_mib(self) -> int:
        """The most that it takes in its life."""
        return max(phase.memory_mib for phase in self.life)

    @property
    def starts_ns(self) -> tuple[int, ...]:
        """The age at which each phase begins."""
        return tuple(accumulate((phase.duration_ns or 0 for phase in self.life[:-1]), initial=0))

    @property
    def lasting_mib(self) -> int | None:
        """What it takes for good once it has started; None of a job, which ends."""
        return self.life[-1].memory_mib if self.life[-1].duration_ns is None else None

    def memory_mib(self, age_ns: int) -> int:
        """What it takes at an age, which is at least 0; 0 after its end."""
        age = age_ns
        for phase in self.life:
            if phase.duration_ns is None or age < phase.duration_ns:
                return phase.memory_mib
            age -= phase.duration_ns
        return 0


class Resident(msgspec.Struct, frozen=True):
    """A tenant on a device, and how long it has been there."""

    tenant: Tenant
    age_ns: int

    @property
    def memory_mib(self) -> int:
        """What it should take now."""
        return self.tenant.memory_mib(self.age_ns)

    @property
    def loading(self) -> bool:
        """Whether it is in a phase before its last."""
        return self.age_ns < self.tenant.starts_ns[-1]


class Device(msgspec.Struct, frozen=True):
    """A device with those that are on it; `used` are samples of the memory in use in MiB, a second apart, now last."""

    name: str
    memory_mib: int
    residents: tuple[Resident, ...] = ()
    used: tuple[float, ...] = ()

    @property
    def free(self) -> list[float]:
        """Samples of the memory that is not in use."""
        return [self.memory_mib - used for used in self.used]

    @property
    def requested_mib(self) -> int:
        """What those on it ask for."""
        return sum(each.tenant.request_mib for each in self.residents)

    @property
    def share(self) -> float:
        """The part of its compute that is promised to those on it."""
        return math.fsum(each.tenant.share for each in self.residents)
