"""Plans the steps from the present state of a GPU to the state that a file wants."""

from collections.abc import Mapping

import msgspec

from sluice.models.errors import InfeasibleLayout
from sluice.mps.mig.demand import DemandInstances
from sluice.mps.mig.geometry import Geometry
from sluice.mps.mig.layout import DestroyInstance, MigStep, SetMig, plan_steps
from sluice.mps.mig.layout_file import LayoutFile
from sluice.mps.mig.packer import WantedInstance, pack
from sluice.mps.mig.placements import Layout, Placement, largest_first


class GpuState(msgspec.Struct, frozen=True):
    """A GPU as it is: the MIG mode, the users of each instance, and the users of the GPU as a whole.

    The `unusable` instances have no compute instance: programs do not see them.
    """

    mig: bool = False
    instances: Mapping[Placement, tuple[str, ...]] = {}
    users: tuple[str, ...] = ()
    unusable: Layout = frozenset()


class GpuPlan(msgspec.Struct, frozen=True):
    """The steps from the present layout of a GPU to the wanted one, and the refused steps with the reasons.

    `shares` are the instances that serve each demand of the file.
    """

    geometry: Geometry
    present: Layout
    wanted: Layout
    steps: tuple[MigStep, ...]
    refusals: tuple[str, ...]
    shares: DemandInstances = {}


def plan_gpu(file: LayoutFile, index: int, geometry: Geometry, present: GpuState) -> GpuPlan:
    """Return a plan for a GPU of the file.

    Raises InfeasibleLayout when its instances do not fit, ConfigError when it names an unknown profile or placement.
    """
    shares = file.shares(index, geometry)
    served = [WantedInstance(profile) for share in shares.values() for profile in share]
    instances = served or file.wanted(index, geometry)
    there = frozenset(present.instances)
    in_use = {each for each, users in present.instances.items() if users}
    usable = there - present.unusable
    try:
        wanted = pack(geometry, instances, usable, in_use)
    except InfeasibleLayout as error:
        raise InfeasibleLayout(f"{file.path}: gpus.{index}.instances: {error}") from None
    found: list[MigStep] = [DestroyInstance(each) for each in largest_first(present.unusable)]
    found += plan_steps(geometry, usable, wanted, mig=(present.mig, file.gpus[index].mig), in_use=in_use)
    refusals = [reason for step in found if (reason := _refusal(step, present)) is not None]
    return GpuPlan(geometry, there, wanted, tuple(found), tuple(refusals), shares)


def _refusal(step: MigStep, present: GpuState) -> str | None:
    match step:
        case DestroyInstance(placement) if users := present.instances[placement]:
            return f"{placement} is in use by {', '.join(users)}"
        case SetMig() if present.users:
            return f"the MIG mode cannot change while the GPU is in use by {', '.join(present.users)}"
    return None
