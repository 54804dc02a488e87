"""Reports devices with a fatal error to the event loop; a thread of its own waits for the driver."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection

from sluice.models.errors import ControlFailed
from sluice.mps.nvidia.nvml import open_nvml

logger = logging.getLogger(__name__)

WAIT_S = 1.0
"""Time that the thread waits in the driver before it looks whether to stop."""


class DeviceWatch:
    """Calls `lost` on the running loop with the UUIDs of `devices` that had a fatal error, and the reason."""

    def __init__(self, devices: Collection[str], lost: Callable[[frozenset[str], str], None]) -> None:
        self._devices = frozenset(devices)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="device-watch", daemon=True)

    def start(self) -> None:
        """Start watching; without a driver one log line says that devices are not watched."""
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread, which takes a second at most."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, 2 * WAIT_S)

    def _watch(self) -> None:
        try:
            with open_nvml() as nvml:
                events = nvml.events()
                while events.watched and not self._stopping.is_set():
                    trouble = events.wait(WAIT_S)
                    if trouble is not None and (hit := trouble.devices & self._devices):
                        self._loop.call_soon_threadsafe(self._lost, hit, trouble.reason)
                events.close()
        except ControlFailed as error:
            logger.warning("devices are not watched for errors: %s", error)
        except RuntimeError:  # the loop is closed
            return
