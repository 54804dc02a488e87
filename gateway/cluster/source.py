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

        It is called again with the same address if a worker was started anew there.
        """
        ...

    def want(self, count: int) -> None:
        """Have workers for the first `count` slots only; until then all slots are to have workers."""
        ...

    async def close(self) -> None:
        """End, and call `placed` no more."""
        ...
