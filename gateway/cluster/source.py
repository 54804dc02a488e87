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

        It is called again with the same address if another worker was started there.
        """
        ...

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        """Have workers for `count` slots; all slots are to have workers until it is called.

        Of those that are too many, the slots in `leaving` are given up, then those without a session.
        """
        ...

    def leased(self, slot: str) -> None:
        """The gateway has a session with the worker of a slot."""
        ...

    def lost(self, slot: str) -> None:
        """The session with the worker of a slot has ended; it is tried again at the same address."""
        ...

    def refused(self, slot: str, holder: str) -> None:
        """The worker of a slot serves the gateway `holder`; it is tried again when `placed` is called for the slot."""
        ...

    @property
    def leases(self) -> int:
        """The number of slots with a session."""
        ...

    def asked(self, slot: str, gateway: str, workers: int) -> None:
        """Another gateway, which has that many workers, has asked for the worker of a slot with a session."""
        ...

    async def close(self) -> None:
        """End, and call `placed` no more."""
        ...
