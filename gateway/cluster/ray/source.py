"""Workers that Ray places, as a source for the gateway; the process that talks to Ray is started and watched here."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from sluice.gateway.cluster.ray.messages import (
    Begin,
    ClassOrder,
    FromRay,
    Granted,
    Leave,
    RayState,
    Tick,
    ToRay,
    Want,
    WorkerAt,
)
from sluice.gateway.cluster.source import Placed
from sluice.gateway.config.ray_settings import RaySettings
from sluice.gateway.observability.logs import log
from sluice.mps.supervisor.child import Child, launch_module
from sluice.mps.supervisor.process import MessageProcess, wait_for_exit

TICK_S = 0.5
FIRST_RESTART_S, LAST_RESTART_S = 0.25, 30.0
"""The first and the longest time before the process that talks to Ray is started again; it doubles each time."""
CONNECT_TIMEOUT_S = 90.0
"""The time for that process to reach the cluster or to say why it cannot."""
LEAVE_S = 6.0
"""The time to give up leases when the server stops."""
ASK_AGAIN_S = 0.5
"""A leased worker that still serves another gateway is asked again after this time."""
NOT_LEASED = "no lease: it belongs to another gateway, or is not wanted"
UNKNOWN = "Ray has not placed it yet"

logger = logging.getLogger(__name__)


def launch_ray_process() -> Child:
    """Start the process that talks to Ray. Raises OSError, and leaves nothing behind then."""
    return launch_module("sluice.gateway.cluster.ray.main", [str(os.getpid())])


class RayCluster:
    """All classes of a server that Ray places; `source` has those of one class.

    `classes` are their settings, with resources and a number of workers, and `gateway` is a name that no other gateway
    has. `key` is the text of the workers' key file. When the process that talks to Ray ends,
    because Ray's head is gone for example, serving goes on with the workers that are there, and it is started again.
    """

    def __init__(
        self,
        classes: Mapping[str, RaySettings],
        gateway: str,
        version: str,
        key: str = "",
        launch: Callable[[], Child] = launch_ray_process,
    ) -> None:
        self._gateway, self._version, self._key, self._launch = gateway, version, key, launch
        self._sources = {name: RaySource(self, name, settings) for name, settings in classes.items()}
        self._process: MessageProcess[ToRay, FromRay] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._restart_s = FIRST_RESTART_S
        self._is_connected = False
        self._trouble = ""
        self._started_s = 0.0
        self._open = 0
        self._stopping = False

    @property
    def trouble(self) -> str:
        """The trouble with the cluster, in a sentence; "" for none."""
        return self._trouble

    def source(self, name: str) -> "RaySource":
        """The source of a class."""
        return self._sources[name]

    def started(self) -> None:
        """One more source has started; with the last one the process is started."""
        self._open += 1
        if self._open == len(self._sources):
            self._start()

    async def closed(self) -> None:
        """One more source has been closed; with the last one all leases are given up."""
        self._open -= 1
        if self._open or self._stopping:
            return
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if (process := self._process) is None:
            return
        if not self._is_connected:  # it has no leases
            process.kill("it is not needed any more")
        process.send(Leave())
        if not await wait_for_exit([process.exited], LEAVE_S):
            process.kill("it did not end")
            await process.exited.wait()

    def send(self, message: ToRay) -> None:
        """Pass a message on, if there is a process; a new one is given all there is to know."""
        if self._process is not None:
            self._process.send(message)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_connected, self._started_s = False, loop.time()
        try:
            child = self._launch()
        except OSError as error:
            self._exited(f"the process that talks to Ray cannot be started: {error}")
            return
        self._process = MessageProcess("process that talks to Ray", child, FromRay, self._received, self._exited)
        orders = {name: source.order() for name, source in self._sources.items()}
        self._process.send(Begin(orders, self._gateway, self._key, self._version))
        self._timer = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick)
        assert self._process is not None
        if not self._is_connected and loop.time() - self._started_s > CONNECT_TIMEOUT_S:
            self._process.kill(f"no answer of the Ray cluster in {CONNECT_TIMEOUT_S:g} s")
        elif not self._process.is_blocked:
            self._process.send(Tick())

    def _received(self, message: FromRay, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        match message:
            case RayState(trouble):
                if not trouble:
                    self._is_connected, self._restart_s = True, FIRST_RESTART_S
                self._note(trouble)
            case Granted(name, leases):
                self._sources[name].granted(leases)
            case WorkerAt(name, slot, number, url, reason):
                self._sources[name].found(slot, number, url, reason)

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log(logger, logging.WARNING, "trouble with the ray cluster", reason=trouble)
        elif self._trouble and not trouble:
            log(logger, logging.INFO, "the ray cluster answers again")
        self._trouble = trouble
        for source in self._sources.values():
            source.noted(trouble)

    def _exited(self, reason: str) -> None:
        self._process = None
        if self._timer is not None:
            self._timer.cancel()
        if self._stopping:
            return
        self._note(f"no connection to Ray: {reason}")
        self._timer = asyncio.get_running_loop().call_later(self._restart_s, self._start)
        self._restart_s = min(2 * self._restart_s, LAST_RESTART_S)


class RaySource:
    """The workers of one class; see `WorkerSource`. A slot whose lease another gateway has is down here."""

    def __init__(self, cluster: RayCluster, name: str, settings: RaySettings) -> None:
        assert settings.most is not None, "it is settled"
        self._cluster, self._name, self._settings = cluster, name, settings
        self._slots = settings.most
        self._wanted = settings.most if settings.count is not None else (settings.min or 0)
        self._leases: dict[int, int] = {}
        self._workers: dict[int, tuple[int, str]] = {}
        """The numbers and the addresses of the workers that were placed."""
        self._reasons: dict[int, str] = {}
        self._placed: Placed | None = None

    def order(self) -> ClassOrder:
        """All there is to know for a new process that talks to Ray."""
        return ClassOrder(self._settings, self._slots, self._wanted, self._leases)

    def start(self, placed: Placed) -> None:
        """Begin to place workers."""
        self._placed = placed
        for slot in range(self._slots):
            self._tell(slot, UNKNOWN)
        self._cluster.started()

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        """Have `count` workers, and give up the slots in `leaving`."""
        self._wanted = max(0, min(count, self._slots))
        slots = tuple(int(slot.rpartition("-")[2]) for slot in leaving)
        for slot in slots:
            self._leases.pop(slot, None)
            self._drop(slot, "given up: fewer partitions are wanted")
        self._cluster.send(Want(self._name, self._wanted, slots))

    def leased(self, slot: str) -> None:
        """Nothing to do: leases are the keeper's."""

    def lost(self, slot: str) -> None:
        """Nothing to do: the keeper says where the worker is next."""

    def refused(self, slot: str, holder: str) -> None:
        """Ask again: the worker finds out soon that the gateway that had it has lost its lease."""
        number = int(slot.rpartition("-")[2])
        asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_again, number, self._workers.get(number))

    @property
    def leases(self) -> int:
        """The number of leases."""
        return len(self._leases)

    def asked(self, slot: str, gateway: str, workers: int) -> None:
        """Nothing to do: who gets what is the keeper's."""

    async def close(self) -> None:
        """Give up all leases, with those of the other classes."""
        if self._placed is not None:
            self._placed = None
            await self._cluster.closed()

    def granted(self, leases: Mapping[int, int]) -> None:
        """These are all leases now."""
        lost = [slot for slot in self._leases if slot not in leases]
        self._leases = dict(leases)
        for slot in lost:
            self._drop(slot, NOT_LEASED)

    def found(self, slot: int, number: int, url: str, reason: str) -> None:
        """The worker of a leased slot is at `url`; "" and a reason while there is none. Each worker has a number."""
        if slot not in self._leases or self._placed is None:
            return
        if not url:
            self._drop(slot, reason)
        elif self._workers.get(slot) != (number, url):  # else a new process tells again
            self._workers[slot] = number, url
            self._reasons.pop(slot, None)
            self._placed(self._slot(slot), url, "")

    def noted(self, trouble: str) -> None:
        """Name trouble with the cluster at slots that have no worker."""
        for slot in range(self._slots):
            if slot not in self._workers and trouble:
                self._tell(slot, trouble)

    def _ask_again(self, slot: int, worker: tuple[int, str] | None) -> None:
        if worker is not None and self._workers.get(slot) == worker and self._placed is not None:
            self._placed(self._slot(slot), worker[1], "")

    def _drop(self, slot: int, reason: str) -> None:
        self._workers.pop(slot, None)
        self._tell(slot, reason)

    def _tell(self, slot: int, reason: str) -> None:
        if self._placed is not None and self._reasons.get(slot) != reason:
            self._reasons[slot] = reason
            self._placed(self._slot(slot), None, reason)

    def _slot(self, number: int) -> str:
        return f"{self._name}-{number}"
