"""Finds the smallest set of instances on one GPU that serves every demand."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from sluice.models.errors import InfeasibleLayout
from sluice.mps.mig.geometry import Geometry, MigProfile
from sluice.mps.mig.placements import enumerate_layouts

_HALVINGS = 10


class MigDemand(msgspec.Struct, frozen=True):
    """Requests a second to serve, and the rate that an instance of each profile serves within the objective."""

    rate: float
    rates: Mapping[MigProfile, float]

    def scaled(self, factor: float) -> "MigDemand":
        """The demand times a factor."""
        return MigDemand(self.rate * factor, self.rates)


DemandInstances = dict[str, tuple[MigProfile, ...]]
"""The instances for each demand, the largest first."""

_Load = tuple[int, ...]
"""The number of instances of each profile of the geometry."""


def cover_demands(geometry: Geometry, demands: Mapping[str, MigDemand]) -> DemandInstances:
    """Return instances that serve every demand, with the fewest compute slices, then memory slices, then instances.

    The search is exact: it looks at every assignment that is not worse than the best one so far. Raises
    InfeasibleLayout with the part of all demands that could be served.
    """
    legal = _legal(geometry, {profile for demand in demands.values() for profile in demand.rates})
    best = _best(geometry, demands, legal)
    if best is not None:
        return best
    raise InfeasibleLayout(f"{', '.join(demands)}: one {geometry.gpu} is not enough; {_part(geometry, demands, legal)}")


def _legal(geometry: Geometry, profiles: set[MigProfile]) -> set[_Load]:
    """The numbers of instances of each profile that fit on the GPU together."""
    every = enumerate_layouts(geometry, {profile: len(profile.starts) for profile in profiles})
    counts = (Counter(each.profile for each in layout) for layout in every)
    return {tuple(count[profile] for profile in geometry.profiles) for count in counts}


def _best(geometry: Geometry, demands: Mapping[str, MigDemand], legal: set[_Load]) -> DemandInstances | None:
    found: DemandInstances | None = None
    bound: tuple[int, int, int] | None = None
    # The demand with the fewest choices first, so that dead ends are found early.
    names = sorted(demands, key=lambda name: (-demands[name].rate / max(demands[name].rates.values(), default=1), name))

    def give(index: int, load: _Load, shares: DemandInstances) -> None:
        nonlocal found, bound
        price = _price(geometry, load)
        if bound is not None and price >= bound:
            return
        if index == len(names):
            found, bound = dict(shares), price
            return
        for share, after in _shares(geometry, demands[names[index]], load, legal):
            shares[names[index]] = share
            give(index + 1, after, shares)

    give(0, (0,) * len(geometry.profiles), {})
    return None if found is None else {name: found[name] for name in demands}


def _shares(
    geometry: Geometry, demand: MigDemand, load: _Load, legal: set[_Load]
) -> Iterator[tuple[tuple[MigProfile, ...], _Load]]:
    """Yield every minimal set of instances that serves a demand beside `load`, and the load with it."""

    def more(
        first: int, share: tuple[MigProfile, ...], load: _Load, rate: float
    ) -> Iterator[tuple[tuple[MigProfile, ...], _Load]]:
        if rate >= demand.rate:
            yield share, load
            return
        for index in range(first, len(geometry.profiles)):
            profile = geometry.profiles[index]
            after = (*load[:index], load[index] + 1, *load[index + 1 :])
            if demand.rates.get(profile, 0) > 0 and after in legal:
                yield from more(index, (*share, profile), after, rate + demand.rates[profile])

    return more(0, (), load, 0.0)


def _price(geometry: Geometry, load: _Load) -> tuple[int, int, int]:
    numbers: Sequence[tuple[MigProfile, int]] = list(zip(geometry.profiles, load, strict=True))
    compute = sum(profile.compute * count for profile, count in numbers)
    return compute, sum(profile.memory * count for profile, count in numbers), sum(load)


def _part(geometry: Geometry, demands: Mapping[str, MigDemand], legal: set[_Load]) -> str:
    """The largest part of all demands that could be served, to a thousandth."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        scaled = {name: demand.scaled(middle) for name, demand in demands.items()}
        if _best(geometry, scaled, legal) is None:
            high = middle
        else:
            low = middle
    return f"it could serve {low:.0%} of these rates"
