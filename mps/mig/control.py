"""What changes the partitions of GPUs, whatever is behind it."""

from typing import Protocol

from sluice.mps.mig.inventory import Gpu
from sluice.mps.mig.placements import Placement


class MigControl(Protocol):
    """Discovers GPUs and changes their MIG instances; every method raises ControlFailed when it cannot.

    GPUs are named by UUID. Nothing that a process uses is changed: such a call is refused with the process's name.
    """

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs as they are now, by index."""
        ...

    def set_mig(self, gpu: str, on: bool) -> None:
        """Turn the MIG mode on or off; the GPU has no instances then."""
        ...

    def create(self, gpu: str, placement: Placement) -> str:
        """Make an instance there with one compute instance on all of it; returns the UUID of its MIG device."""
        ...

    def destroy(self, gpu: str, placement: Placement) -> None:
        """Take away the instance there, with its compute instances."""
        ...
