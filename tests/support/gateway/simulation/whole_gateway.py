"""A whole gateway on a simulated machine: from one seed, its traffic, its operators' orders and all faults.

The gateway is the one that a server runs, below the protocols: everything that `build_gateway` builds. Time is virtual.
"""

import asyncio
import gc
import io
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings
from sluice.gateway.config.server_config import ModelControlMode, ServerConfig, ServerLimits
from sluice.gateway.deployment.file_threads import FileThreads
from sluice.gateway.deployment.read import read_models
from sluice.gateway.server.wiring import Gateway, Surroundings, build_gateway
from sluice.models.errors import ServingError
from sluice.models.pipelines import file as pipeline_file
from sluice.models.units import NS_PER_S
from sluice.models.yaml_file import load_yaml
from sluice.mps.partitions.partition import CpuPartition
from tests.support.gateway.simulation.faults import Fault
from tests.support.gateway.simulation.machine import Machine, open_descriptors
from tests.support.gateway.simulation.models import NAMES, save_models
from tests.support.gateway.simulation.users import Users
from tests.support.scheduling.virtual_time import VirtualLoop

REQUESTS = 60
ORDERS = 6
FAULTY_S = 20.0
"""The time in which requests and orders come and faults happen."""
OUTCOME_WITHIN_S = 600.0
"""Every request has its outcome this long after the faults have ended, and every order its result."""
SERVING_WITHIN_S = 4 * 3600.0
"""All partitions are up, and every name is served, this long after the faults have ended: quarantines double."""
ROOM_FOR_ONE_MB = 270 / (1 << 20)
"""The memory of a partition that holds one model at a time: their files have about 180 bytes."""
PROBES, PROBE_S = 60, 60.0
"""A name is asked for this often, at this interval, until it answers."""
DRAIN_S = 30.0

_T = TypeVar("_T")


class Simulated(NamedTuple):
    """The result of a run: its journal, each request's outcome with the time, and everything that was wrong."""

    journal: bytes
    outcomes: tuple[str, ...]
    faults: tuple[str, ...]
    problems: tuple[str, ...]


class SimulatedLoop(VirtualLoop):
    """A loop in virtual time that runs what is for threads at once."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., _T], *arguments: Any
    ) -> "asyncio.Future[_T]":
        del executor
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class SimulatedFiles(FileThreads):
    """Reads files at once, without threads."""

    async def run(self, work: Callable[[], _T]) -> _T:
        return work()


class Journal(io.BytesIO):
    """The journal of a scheduler, whose invariants are checked with each step."""

    scheduler: Scheduler | None = None

    def __init__(self, problems: list[str]) -> None:
        super().__init__()
        self._problems = problems

    def write(self, line: Any, /) -> int:
        if self.scheduler is not None and not self._problems:
            try:
                check_invariants(self.scheduler)
            except AssertionError as error:
                self._problems.append(f"an invariant of the scheduler does not hold: {error}")
        return super().write(line)


class _Problems(logging.Handler):
    """Collects what the gateway logs as its own fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self._problems.append(f"logged: {record.getMessage()}: {record.exc_info[1]!r}")


class WholeGateway:
    """One run."""

    def __init__(self, loop: SimulatedLoop, seed: int, repository: Path) -> None:
        self.loop = loop
        self.machine = Machine(loop, seed)
        self.problems = self.machine.problems
        self.faults = self.machine.faults
        self.journal = Journal(self.problems)
        self.repository = repository
        self._source = Random(f"{seed} configuration")
        self._stops_early = self._source.random() < 0.25
        self._work: list[asyncio.Task[None]] = []
        self.gateway: Gateway
        self.users: Users
        loop.set_exception_handler(self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"an error reached the loop: {context['message']}: {context.get('exception')!r}")

    async def run(self) -> None:
        with self.machine.installed():
            self._build()
            await self._live()
            await self._end()

    def _build(self) -> None:
        source = self._source
        memory_mb = source.choice((None, None, ROOM_FOR_ONE_MB))
        self._holds_one_model = memory_mb is not None
        config = ServerConfig(
            repository=str(self.repository),
            control=ModelControlMode.EXPLICIT,
            load_models=("*",),
            partitions=tuple(
                CpuPartition(f"cpu{core}", (core,), memory_mb=memory_mb) for core in range(source.choice((1, 2, 3)))
            ),
            limits=ServerLimits(queue_requests=source.choice((4, 1000)), input_arena_mb=1, output_arena_mb=1),
            residency=ResidencySettings(loading=source.choice((LoadingMode.AUTO, LoadingMode.DEMAND))),
            default_slo_ms=source.choice((200, 2000, 20_000)),
            recycle=source.random() < 0.3,
            cache_bytes=source.choice((0, 20_000)),
            spare_worker=source.random() < 0.7,
        )
        surroundings = Surroundings(self.machine.clock.now_ns, self.machine.alarm, self.machine.launch)
        repository = read_models(config.repositories, (), config)
        assert not repository.broken, repository.broken
        self.gateway = build_gateway(config, repository, self.journal.write, surroundings=surroundings)
        self.gateway.deployer.files = SimulatedFiles()
        self.journal.scheduler = self.gateway.scheduler
        self.users = Users(self.gateway, self.machine, self.repository, FAULTY_S)

    async def _live(self) -> None:
        source = self._source
        self.gateway.runtime.start()
        if source.random() < 0.7:
            await self.gateway.inventory.in_service.wait()
        self.faults.active = True
        for number in range(1, REQUESTS + 1):
            self._work.append(self._task(f"request {number}", self.users.request(number)))
        for number in range(ORDERS):
            self._work.append(self._task(f"order {number}", self.users.order(number)))
        await self._disturb()
        if self._stops_early:
            return
        self.faults.active = False
        await self._finish()
        if not self.problems:
            await self._serves_again()

    async def _finish(self) -> None:
        """Wait until all requests and orders have ended."""
        _, late = await asyncio.wait(self._work, timeout=OUTCOME_WITHIN_S)
        for each in sorted(task.get_name() for task in late):
            self.problems.append(f"{each} has no end {OUTCOME_WITHIN_S:g} s after the faults")
        for task in late:
            task.cancel()

    def _task(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        async def checked() -> None:
            try:
                await work
            except Exception as error:
                self.problems.append(f"{name}: {error!r}")

        return self.loop.create_task(checked(), name=name)

    async def _disturb(self) -> None:
        """Kill and stop workers, and let the gateway stand still."""
        end_s = self.loop.time() + (self._source.uniform(0, FAULTY_S) if self._stops_early else FAULTY_S)
        while self.loop.time() < end_s:
            await asyncio.sleep(self._source.uniform(0.0, 1.0))
            workers = [worker for worker in self.machine.workers if worker.alive]
            if workers and self.faults.happens(Fault.KILLED):
                self.faults.source[Fault.KILLED].choice(workers).kill()
            if workers and self.faults.happens(Fault.STOPPED):
                source = self.faults.source[Fault.STOPPED]
                source.choice(workers).stop(source.choice((0.05, 3.0, 40.0, None)))
            if self.faults.happens(Fault.PAUSED):
                self.loop.now_ns += int(self.faults.source[Fault.PAUSED].choice((0.03, 2.0, 100.0)) * NS_PER_S)

    async def _serves_again(self) -> None:
        """Check that everything is served once the faults have ended."""
        inventory, end_s = self.gateway.inventory, self.loop.time() + SERVING_WITHIN_S
        while not all(map(inventory.is_up, inventory.names)):
            if self.loop.time() > end_s:
                down = [name for name in inventory.names if not inventory.is_up(name)]
                self.problems.append(f"{', '.join(down)} not up {SERVING_WITHIN_S:g} s after the faults")
                return
            await asyncio.sleep(10)
        for _ in range(1 + len(self.machine.workers)):  # each may be stopped still
            reason = await self._load_all()
            if not reason:
                break
        else:
            self.problems.append(f"not everything can be loaded after the faults: {reason}")
        for number, name in enumerate(NAMES, REQUESTS + 1):
            for _ in range(PROBES):
                outcome = await self.users.ask(number, name, 2, 3, {"slo_ms": 600_000})
                if outcome.split()[1] in ("completed", "completed_late") or self._may_load_too_long(outcome):
                    break
                await asyncio.sleep(PROBE_S)  # until it is loaded again, or a worker that is stopped still is found
            else:
                self.problems.append(f"{name} is not served after the faults: {outcome}")
            self.users.outcomes[f"{name} in the end"] = outcome

    def _may_load_too_long(self, outcome: str) -> bool:
        """Return whether an outcome is due to loads that take longer than the objective of a pipeline."""
        # A partition that holds one model at a time loads them in turn, which may turn out only while it does.
        evicted = self._holds_one_model and outcome.split()[1] == "evicted_deadline"
        return evicted or "is not loaded: predicted" in outcome

    async def _load_all(self) -> str:
        """Serve everything; returns the reason why that is not possible now."""
        deployer, registry = self.gateway.deployer, self.gateway.registry
        # A model that did not load when a worker began is not tried again by itself.
        if all(registry.served(name) and registry.ready(name, "") for name in NAMES):
            return ""
        try:
            for name in NAMES:
                await deployer.unload(name)
            await asyncio.sleep(10)
            # First what has its models report confidences: a reload for that would need room for two of each.
            for name in ("cascade", *NAMES):
                await deployer.load(name)
        except ServingError as error:
            return str(error)
        return ""

    async def _end(self) -> None:
        """Stop as a server does, and check that nothing is left."""
        gateway = self.gateway
        if not self.problems and not self._stops_early:
            await asyncio.sleep(60)
            self._check_rest()
        gateway.registry.start_draining()
        await gateway.runtime.drain(DRAIN_S)
        gateway.runtime.close()
        gateway.deployer.close()
        await gateway.executor.drain()
        await self._finish()
        if gateway.runtime.failed.is_set():
            self.problems.append("the scheduler failed")
        for worker in self.machine.workers:
            if worker.alive:
                self.problems.append(f"worker {worker.pid} still runs")
        await asyncio.sleep(0)
        tasks = [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        timers = [handle for handle in self.loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if not self.problems:
            self.problems += [f"a task is left: {name}" for name in tasks]
            self.problems += [f"a timer is left: {handle!r}" for handle in timers]

    def _check_rest(self) -> None:
        """Nothing is under way in a gateway without requests."""
        gateway, scheduler = self.gateway, self.gateway.scheduler
        left = {
            "open requests": gateway.runtime.in_flight,
            "requests of the scheduler": len(scheduler.requests),
            "batches": len(scheduler.dispatcher.batches),
            "bytes of admitted requests": scheduler.memory.used_bytes,
            "bytes of the input arena": gateway.executor.arena_bytes,
            "overflow regions": sum("sluice-overflow" in each for each in open_descriptors()),
        }
        self.problems += [f"{count} {what} left" for what, count in left.items() if count]


@cache
def _parsed(text: str) -> object:
    """The document in `text`: parsing takes longer than everything else together."""
    return load_yaml(text, "")


@cache
def _freeze() -> None:
    """Let collections of garbage pass over what there is before the first run."""
    gc.collect()
    gc.freeze()


def simulate(seed: int) -> Simulated:
    """Run a whole gateway from a seed."""
    _freeze()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-simulation-") as directory,
        patch.object(pipeline_file, "load_yaml", lambda text, path: _parsed(text)),
    ):
        repository = Path(directory) / "models"
        repository.mkdir()
        save_models(repository)
        for file in sorted(repository.rglob("*")):
            os.utime(file, ns=(0, 0))
        gc.collect()
        before = open_descriptors()
        loop = SimulatedLoop()
        whole = WholeGateway(loop, seed, repository)
        handler = _Problems(whole.problems)
        logging.getLogger("sluice").addHandler(handler)
        try:
            loop.run_until_complete(whole.run())
        except RuntimeError as error:
            whole.problems.append(f"the simulation stopped: {error}")
        finally:
            logging.getLogger("sluice").removeHandler(handler)
            loop.close()
        result = Simulated(
            whole.journal.getvalue().replace(str(repository).encode(), b"models"),
            tuple(f"{name}: {outcome}" for name, outcome in sorted(whole.users.outcomes.items())),
            tuple(whole.faults.enabled),
            tuple(whole.problems),
        )
        del whole, loop, handler
        gc.collect()
        left = Counter(open_descriptors()) - Counter(before)
        if not result.problems and left:
            result = result._replace(problems=(f"descriptors are left: {dict(left)}",))
        return result
