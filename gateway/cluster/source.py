"""The protocol of sources, which find or place the workers of a class of remote partitions."""

from collections.abc import Callable
from typing import Protocol

Placed = Callable[[str, str | None, str], None]
"""Gets a slot, the address of its worker, such as `10.0.0.5:9001`, and "", or None and a sentence that says why there
is no worker."""


class WorkerSource(Protocol):
    """Finds or places the workers of a class; each worker belongs to one slot of the class."""

    def start(self, placed: Placed) -> None:
        """Begin, on the running event loop; `placed` is called there whenever the worker of a slot changes.

        It is called again with the same address if another worker was started there. If the slot has a worker and
        gets none, the batches in flight there end first; then the lease is given up.
        """
        ...

    def want(self, count: int) -> None:
        """Have workers for the first `count` slots only; until then all slots are to have workers."""
        ...

    def leased(self, slot: str) -> None:
        """The gateway has the lease of the slot's worker."""
        ...

    def lost(self, slot: str) -> None:
        """The lease of the slot's worker ended, but not because `placed` took the worker away."""
        ...

    def refused(self, slot: str, holder: str) -> None:
        """The gateway `holder` has the lease of the slot's worker.

        The worker is not tried again until `placed` is called for the slot: the source decides where and when.
        """
        ...

    def asked(self, slot: str, gateway: str) -> None:
        """The gateway `gateway` was refused by the slot's worker, whose lease this gateway has."""
        ...

    async def close(self) -> None:
        """End, and call `placed` no more."""
        ...
