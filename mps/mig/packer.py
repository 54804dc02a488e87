"""Finds placements for wanted instances: present ones stay where they can, and free slices stay in large pieces."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from sluice.models.errors import InfeasibleLayout
from sluice.mps.mig.geometry import Geometry, MigProfile
from sluice.mps.mig.placements import (
    Layout,
    Placement,
    enumerate_layouts,
    free_placements,
    largest_first,
    layout_problem,
    shortage,
)


class WantedInstance(msgspec.Struct, frozen=True):
    """An instance to place, anywhere or at `start`."""

    profile: MigProfile
    start: int | None = None

    def __str__(self) -> str:
        return self.profile.name if self.start is None else f"{self.profile.name}@{self.start}"


def pack(
    geometry: Geometry,
    wanted: Sequence[WantedInstance],
    present: Collection[Placement] = (),
    in_use: Collection[Placement] = (),
) -> Layout:
    """Return the best layout of everything wanted, starting from what is `present`.

    It loses the least of what is in use, then of what is present (both in slices), then leaves the most placements for
    the largest profile, for the next one, and so on. All layouts of the wanted profiles are looked at: some hundreds.
    Raises InfeasibleLayout with the reason, and with the part that would fit.
    """
    fixed = frozenset(Placement(each.profile, each.start) for each in wanted if each.start is not None)
    free = Counter(each.profile for each in wanted if each.start is None)
    found = list(_complete(geometry, fixed, free, len(wanted)))
    if not found:
        raise InfeasibleLayout(_refusal(geometry, wanted))

    def merit(layout: Layout) -> tuple[int, int, list[int], list[int]]:
        left = Counter(each.profile for each in free_placements(geometry, layout))
        return (
            -_slices(set(in_use) - layout),
            -_slices(set(present) - layout),
            [left[profile] for profile in geometry.profiles],
            [-each.start for each in largest_first(layout)],
        )

    return max(found, key=merit)


def _complete(geometry: Geometry, fixed: Layout, free: Counter[MigProfile], count: int) -> Iterator[Layout]:
    """Yield every layout of everything wanted."""
    if layout_problem(geometry, fixed) is None and shortage(geometry, list(free.elements())) is None:
        yield from (layout for layout in enumerate_layouts(geometry, free, fixed) if len(layout) == count)


def _slices(lost: Iterable[Placement]) -> int:
    return sum(each.profile.compute for each in lost)


def _refusal(geometry: Geometry, wanted: Sequence[WantedInstance]) -> str:
    """The reason why it does not fit, and the largest part of it that does."""
    text = f"{counted(map(str, wanted))} does not fit on {geometry.gpu}: {_reason(geometry, wanted)}"
    part = _largest_part(geometry, wanted)
    return f"{text}; {part} would fit" if part else text


def _reason(geometry: Geometry, wanted: Sequence[WantedInstance]) -> str:
    places = [Placement(each.profile, each.start) for each in wanted if each.start is not None]
    if reason := layout_problem(geometry, places) or shortage(geometry, [each.profile for each in wanted]):
        return reason
    starts = [f"{profile.name} starts at {_or(profile.starts)}" for profile in dict.fromkeys(w.profile for w in wanted)]
    return f"it has the slices, but no placements without overlap ({', '.join(starts)})"


def _largest_part(geometry: Geometry, wanted: Sequence[WantedInstance]) -> str:
    """The largest part of the wanted instances that fits, by slices; empty when nothing does."""
    starts: dict[Placement, int] = Counter(
        Placement(each.profile, each.start) for each in wanted if each.start is not None
    )
    most = Counter(each.profile for each in wanted)
    free = Counter(each.profile for each in wanted if each.start is None)

    def possible(layout: Layout) -> bool:
        elsewhere = Counter(each.profile for each in layout if each not in starts)
        return elsewhere <= free

    parts = (layout for layout in enumerate_layouts(geometry, most) if possible(layout))
    best = max(parts, key=lambda layout: (_slices(layout), sum(each.profile.memory for each in layout), -len(layout)))
    names = [str(each) if each in starts else each.profile.name for each in largest_first(best)]
    return counted(names)


def counted(names: Iterable[str]) -> str:
    """Names in their order with their counts: `2 x 3g.40gb, 1g.10gb`."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())


def _or(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
