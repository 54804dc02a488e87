"""Devices and the tenants of their memory: models and jobs, with their requests and measurements."""

import math
from functools import cached_property, reduce
from itertools import accumulate

import msgspec


class MemoryPhase(msgspec.Struct, frozen=True):
    """A part of a life in which memory stays below `memory_mib`; the last one may lack `duration_ns` and then lasts."""

    memory_mib: int
    duration_ns: int | None = None


class Tenant(msgspec.Struct, frozen=True, dict=True):
    """A model or a job.

    `request_mib` is its owner's request, and `share` its part of a device's compute. `phases` are the memory over its
    life, as measured in earlier ones, and `usage` samples of it in MiB, taken at the same times as those of all other
    tenants; both are empty when nothing was measured.
    """

    name: str
    request_mib: int
    phases: tuple[MemoryPhase, ...] = ()
    usage: tuple[float, ...] = ()
    share: float = 0.0

    @property
    def life(self) -> tuple[MemoryPhase, ...]:
        """Its phases; while nothing was measured, one that lasts, with its request."""
        return self.phases or (MemoryPhase(self.request_mib),)

    @cached_property
    def peak_mib(self) -> int:
        """The most memory of its life."""
        return max(phase.memory_mib for phase in self.life)

    @cached_property
    def starts_ns(self) -> tuple[int, ...]:
        """The age at which each phase begins."""
        return tuple(accumulate((phase.duration_ns or 0 for phase in self.life[:-1]), initial=0))

    @cached_property
    def steady_mib(self) -> int | None:
        """Its memory once it has started; None for a job, which ends."""
        return self.life[-1].memory_mib if self.life[-1].duration_ns is None else None

    def memory_mib(self, age_ns: int) -> int:
        """Its memory at an age of at least 0; 0 after its end."""
        age = age_ns
        for phase in self.life:
            if phase.duration_ns is None or age < phase.duration_ns:
                return phase.memory_mib
            age -= phase.duration_ns
        return 0


class PlacedTenant(msgspec.Struct, frozen=True):
    """A tenant on a device, and its age there."""

    tenant: Tenant
    age_ns: int

    @property
    def memory_mib(self) -> int:
        """The memory that it should use now."""
        return self.tenant.memory_mib(self.age_ns)

    @property
    def loading(self) -> bool:
        """Return whether it is in a phase before its last."""
        return self.age_ns < self.tenant.starts_ns[-1]


class MemoryForecast(msgspec.Struct, frozen=True):
    """The future memory of tenants together: `jobs` end, the others stay, with `resident_mib`.

    Of those that stay one at a time is loaded, now or again, which takes `load_mib` more.
    """

    jobs: tuple[PlacedTenant, ...] = ()
    resident_mib: int = 0
    load_mib: int = 0

    def with_tenant(self, other: PlacedTenant) -> "MemoryForecast":
        """The forecast with one more tenant."""
        steady_mib = other.tenant.steady_mib
        if steady_mib is None:
            return MemoryForecast((*self.jobs, other), self.resident_mib, self.load_mib)
        load_mib = max(self.load_mib, other.tenant.peak_mib - steady_mib)
        return MemoryForecast(self.jobs, self.resident_mib + steady_mib, load_mib)

    @property
    def peak_mib(self) -> int:
        """The most memory at any time from now on, if all goes as measured: jobs only grow where a phase begins."""
        starts = {start - each.age_ns for each in self.jobs for start in each.tenant.starts_ns}
        times = {0} | {time for time in starts if time > 0}
        jobs_mib = max(sum(each.tenant.memory_mib(each.age_ns + time) for each in self.jobs) for time in times)
        return jobs_mib + self.resident_mib + self.load_mib


class Device(msgspec.Struct, frozen=True, dict=True):
    """A device with its residents; `used` are samples of the memory in use in MiB, a second apart, the latest last.

    Sums over all residents are computed once: thousands of tenants may be tried there.
    """

    name: str
    memory_mib: int
    residents: tuple[PlacedTenant, ...] = ()
    used: tuple[float, ...] = ()

    @property
    def free(self) -> list[float]:
        """Samples of the free memory."""
        return [self.memory_mib - used for used in self.used]

    @cached_property
    def requested_mib(self) -> int:
        """The requests of all residents."""
        return sum(each.tenant.request_mib for each in self.residents)

    @cached_property
    def share(self) -> float:
        """The part of its compute that its residents are guaranteed."""
        return math.fsum(each.tenant.share for each in self.residents)

    @cached_property
    def loading(self) -> str | None:
        """The name of the first resident that is loading."""
        return next((each.tenant.name for each in self.residents if each.loading), None)

    @cached_property
    def unaccounted_mib(self) -> int:
        """The memory in use that no resident should use."""
        return max(0, round(self.used[-1]) - sum(each.memory_mib for each in self.residents)) if self.used else 0

    @cached_property
    def forecast(self) -> MemoryForecast:
        """The future memory of its residents."""
        return reduce(MemoryForecast.with_tenant, self.residents, MemoryForecast())
