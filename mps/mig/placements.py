"""Placements of MIG instances: the layouts that are legal on a GPU."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations

import msgspec

from sluice.models.errors import ConfigError
from sluice.mps.mig.geometry import Geometry, MigProfile


class Placement(msgspec.Struct, frozen=True):
    """An instance of a profile that starts at a memory slice; written `3g.40gb@4`."""

    profile: MigProfile
    start: int

    @property
    def stop(self) -> int:
        """The first memory slice after it."""
        return self.start + self.profile.memory

    def overlaps(self, other: "Placement") -> bool:
        """Return whether both use a memory slice."""
        return self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        return f"{self.profile.name}@{self.start}"


Layout = frozenset[Placement]
"""The instances of a GPU."""


def parse_placement(geometry: Geometry, text: str) -> Placement:
    """Return the placement of a text such as `3g.40gb@4`; raises ConfigError with the possible ones."""
    name, _, at = text.partition("@")
    profile = geometry.find(name)
    starts = ", ".join(map(str, profile.starts))
    if not at.strip().isdecimal() or int(at) not in profile.starts:
        raise ConfigError(f"'{text}': expected {profile.name}@START, where START is one of {starts}")
    return Placement(profile, int(at))


def largest_first(layout: Iterable[Placement]) -> list[Placement]:
    """Sort in the order of creation: the largest first, then by start."""
    return sorted(layout, key=lambda each: ([-number for number in each.profile.size], each.profile.name, each.start))


def layout_problem(geometry: Geometry, layout: Collection[Placement]) -> str | None:
    """Return the reason why the instances cannot be on the GPU together, None if they can."""
    for each in layout:
        if each.profile not in geometry.profiles or each.start not in each.profile.starts:
            return f"{each} is not a placement of {geometry.gpu}"
    for one, other in combinations(largest_first(layout), 2):
        if one == other:
            return f"{one} is given twice"

        if one.overlaps(other):
            return f"{one} and {other} overlap"
    return shortage(geometry, [each.profile for each in layout])


def shortage(geometry: Geometry, profiles: Collection[MigProfile]) -> str | None:
    """Return what the GPU has too little of for instances of these profiles, wherever they are placed, or None."""
    compute, memory = sum(each.compute for each in profiles), sum(each.memory for each in profiles)
    reasons = []
    if compute > geometry.compute:
        reasons.append(f"{compute} compute slices of {geometry.compute}")
    if memory > geometry.memory:
        reasons.append(f"{memory} memory slices of {geometry.memory}")
    if reasons:
        return f"they take {' and '.join(reasons)}"
    if sum(each.media for each in profiles) > 1:
        return "only one instance can have the media engines (+me)"
    return None


def free_placements(geometry: Geometry, layout: Collection[Placement]) -> list[Placement]:
    """Return every single placement that could be added, the largest profile first."""
    compute = geometry.compute - sum(each.profile.compute for each in layout)
    media = any(each.profile.media for each in layout)
    taken = _mask(layout)
    return [
        Placement(profile, start)
        for profile in geometry.profiles
        if profile.compute <= compute and not (media and profile.media)
        for start in profile.starts
        if not taken & _bits(profile, start)
    ]


def enumerate_layouts(
    geometry: Geometry, most: Mapping[MigProfile, int], fixed: Layout = frozenset()
) -> Iterator[Layout]:
    """Yield every legal layout of `fixed` and at most `most` more of each profile; `fixed` itself comes first.

    The time is proportional to their number: 298 of 1g, 2g, 3g, 4g and 7g, 2319 of all profiles of an A100.
    """
    places = sorted(
        (Placement(profile, start) for profile in most for start in profile.starts), key=lambda each: each.start
    )
    compute = geometry.compute - sum(each.profile.compute for each in fixed)
    media = any(each.profile.media for each in fixed)
    return _extended(fixed, places, 0, _mask(fixed), compute, media, Counter(most))


def _extended(
    layout: Layout,
    places: list[Placement],
    first: int,
    taken: int,
    compute: int,
    media: bool,
    left: Counter[MigProfile],
) -> Iterator[Layout]:
    """Yield `layout` and all its extensions by placements from index `first` on, each of which is tried once."""
    yield layout
    for index in range(first, len(places)):
        each = places[index]
        profile, bits = each.profile, _bits(each.profile, each.start)
        if taken & bits or profile.compute > compute or not left[profile] or (media and profile.media):
            continue
        left[profile] -= 1
        yield from _extended(
            layout | {each}, places, index + 1, taken | bits, compute - profile.compute, media or profile.media, left
        )
        left[profile] += 1


def _bits(profile: MigProfile, start: int) -> int:
    return ((1 << profile.memory) - 1) << start


def _mask(layout: Iterable[Placement]) -> int:
    """The used memory slices, a bit each."""
    mask = 0
    for each in layout:
        mask |= _bits(each.profile, each.start)
    return mask
