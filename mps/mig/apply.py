"""Carries out the steps of a plan on a GPU."""

from collections.abc import Callable

from sluice.models.errors import PartitionError
from sluice.mps.mig.control import MigControl
from sluice.mps.mig.desired import GpuPlan
from sluice.mps.mig.layout import CreateInstance, DestroyInstance, SetMig


def carry_out(control: MigControl, gpu: str, plan: GpuPlan, tell: Callable[[str], None]) -> None:
    """Do the steps in order, and tell each that is done; nothing is done of a plan with refusals.

    Raises PartitionError for refusals, and ControlFailed where a step fails: what is done by then stays, and a new plan
    goes on from there.
    """
    if plan.refusals:
        raise PartitionError(f"GPU {gpu} is left as it is: {'; '.join(plan.refusals)}")
    for step in plan.steps:
        match step:
            case SetMig(on):
                control.set_mig(gpu, on)
                tell(str(step))
            case DestroyInstance(placement):
                control.destroy(gpu, placement)
                tell(str(step))
            case CreateInstance(placement):
                tell(f"{step}: {control.create(gpu, placement)}")
