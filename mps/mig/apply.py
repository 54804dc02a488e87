"""Applies the steps of a plan to a GPU through a driver."""

from collections.abc import Callable
from typing import Protocol

from sluice.models.errors import PartitionError
from sluice.mps.mig.desired import GpuPlan
from sluice.mps.mig.inventory import Gpu
from sluice.mps.mig.layout import CreateInstance, DestroyInstance, SetMig
from sluice.mps.mig.placements import Placement


class MigControl(Protocol):
    """Discovers GPUs and changes their MIG instances; every method raises ControlFailed when it fails.

    GPUs are named by UUID. Nothing that a process uses is changed: such a call is refused with the process's name.
    """

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs as they are now, by index."""
        ...

    def set_mig(self, gpu: str, on: bool) -> None:
        """Turn the MIG mode on or off; the GPU has no instances then."""
        ...

    def create(self, gpu: str, placement: Placement) -> str:
        """Create an instance there with one compute instance on all of it; returns the UUID of its MIG device."""
        ...

    def destroy(self, gpu: str, placement: Placement) -> None:
        """Destroy the instance there with its compute instances."""
        ...


def apply_plan(control: MigControl, gpu: str, plan: GpuPlan, report: Callable[[str], None]) -> None:
    """Carry out the steps in order and report each; nothing is done if the plan has refusals.

    Raises PartitionError for refusals, and ControlFailed when a step fails: the finished steps stay, and a new plan
    goes on from there.
    """
    if plan.refusals:
        raise PartitionError(f"GPU {gpu}: nothing was changed: {'; '.join(plan.refusals)}")
    for step in plan.steps:
        match step:
            case SetMig(on):
                control.set_mig(gpu, on)
                report(str(step))
            case DestroyInstance(placement):
                control.destroy(gpu, placement)
                report(str(step))
            case CreateInstance(placement):
                report(f"{step}: {control.create(gpu, placement)}")
