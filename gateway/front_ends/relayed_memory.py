"""Shared memory of clients, as front ends see it."""

from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.gateway.protocol.shared_memory import SharedMemory, SharedMemoryRef, SharedMemoryWindow


class RelayedMemory(SharedMemory):
    """Shared memory of clients, whose regions only the gateway's process knows."""

    def input_window(self, place: SharedMemoryRef) -> SharedMemoryWindow:
        """Have the request passed on."""
        raise RelayNeeded

    def window(self, place: SharedMemoryRef) -> SharedMemoryWindow:
        """Have the request passed on."""
        raise RelayNeeded
