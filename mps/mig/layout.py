"""The steps from one layout to another."""

from collections.abc import Collection

import msgspec

from sluice.mps.mig.geometry import Geometry
from sluice.mps.mig.placements import Layout, Placement, largest_first, layout_problem


class SetMig(msgspec.Struct, frozen=True):
    """Turn the GPU's MIG mode on or off."""

    on: bool

    def __str__(self) -> str:
        return f"turn MIG mode {'on' if self.on else 'off'}"


class CreateInstance(msgspec.Struct, frozen=True):
    """Create an instance, with one compute instance that takes all of it."""

    placement: Placement

    def __str__(self) -> str:
        return f"create {self.placement}"


class DestroyInstance(msgspec.Struct, frozen=True):
    """Destroy an instance."""

    placement: Placement

    def __str__(self) -> str:
        return f"destroy {self.placement}"


MigStep = SetMig | CreateInstance | DestroyInstance


class LayoutDiff(msgspec.Struct, frozen=True):
    """The instances that one layout loses and gains on the way to another."""

    gone: Layout
    new: Layout


def difference(present: Layout, wanted: Layout) -> LayoutDiff:
    """Compare two layouts."""
    return LayoutDiff(present - wanted, wanted - present)


def plan_steps(
    geometry: Geometry,
    present: Layout,
    wanted: Layout,
    *,
    mig: tuple[bool, bool] = (True, True),
    in_use: Collection[Placement] = (),
) -> list[MigStep]:
    """Return the steps from the `present` layout to the `wanted` one, both legal; `mig` is the mode before and after.

    The layout is legal after each step, and instances of both layouts are not touched. Instances are created the
    largest first, each as soon as it fits. An instance is destroyed only when it is in the way, those in use last, and
    the rest at the end, so that the GPU always holds as much as it can.
    """
    before, after = mig
    change = difference(present, wanted)
    going = largest_first(change.gone)
    going.reverse()
    going.sort(key=lambda each: each in in_use)
    found: list[MigStep] = [SetMig(on=True)] if after and not before else []
    layout = set(present)
    coming = largest_first(change.new)
    while coming:
        fits = next((each for each in coming if layout_problem(geometry, layout | {each}) is None), None)
        if fits is not None:
            found.append(CreateInstance(fits))
            layout.add(fits)
            coming.remove(fits)
            continue
        # There is one to destroy, since all that is wanted and all that stays are legal together.
        obstacle = next((each for each in going if _in_the_way(each, coming[0])), going[0])
        found.append(DestroyInstance(obstacle))
        layout.remove(obstacle)
        going.remove(obstacle)
    found.extend(DestroyInstance(each) for each in going)
    if before and not after:
        found.append(SetMig(on=False))
    return found


def _in_the_way(one: Placement, other: Placement) -> bool:
    return one.overlaps(other) or (one.profile.media and other.profile.media)
