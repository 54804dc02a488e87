"""A gateway whose workers are replaced by a double that does everything at once."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, cast

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, Member, UnloadModel
from sluice.batcher.interface.events import BatchCompleted, ModelLoaded, ModelLoadFailed, ModelUnloaded, PartitionReady
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings
from sluice.batcher.settings.spec_builder import build_spec
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.deployment.revision import RevisionSource, deployed_from
from sluice.gateway.deployment.rollout import Rollout
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.mixed import MixedExecutor
from sluice.gateway.management.repository_api import IndexEntry, RepositoryApi
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.partitions.inventory import Inventory, ProcessDetails
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.tensors.combiner import Combined
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import Repository, Selection
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition
from tests.unit.gateway.deployment.test_deployer import save

TABLE = LatencyTable.from_ms({1: 1})
PIPELINE = "stages: {only: {model: m, inputs: {x: request.x}}}\noutputs: {y: only.y}\n"


class InstantExecutor:
    """Loads, unloads and runs at once, except batches while it is to `hold` them and models that are `broken`.

    One that is `slow` does not load anything for now.
    """

    def __init__(self, partitions: Sequence[str]) -> None:
        self.partitions = partitions
        self.orders: list[str] = []
        self.ordered = asyncio.Event()
        self.known: set[str] = set()
        self.broken: set[str] = set()
        self.slow = False
        self.hold = False
        self.held: list[DispatchBatch] = []
        self.report: EventSink

    def start(self, report: EventSink) -> None:
        self.report = report
        for partition in self.partitions:
            report(PartitionReady(partition, {}), ProcessDetails(1, (0,), Evidence()))

    def add(
        self, wirings: Mapping[str, Any], models: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.known |= wirings.keys() | models.keys()
        assert files.keys() == set(self.partitions)
        assert all(given.keys() == models.keys() for given in files.values())

    def remove(self, pipelines: Collection[str], models: Collection[str]) -> None:
        self.known -= {*pipelines, *models}

    def recycle(self, partition: str) -> None:
        self.orders.append(f"recycle {partition}")

    def admit(
        self,
        request: int,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        rows: int,
        input_bytes: int,
        shared: BatchOutputs | None = None,
    ) -> int:
        assert pipeline in self.known
        return 0

    def run(self, batch: DispatchBatch) -> None:
        self.held.append(batch)
        if not self.hold:
            self.finish()

    def finish(self) -> None:
        while self.held:
            self.report(BatchCompleted(self.held.pop(0).batch, 0, 1))

    def revoke(self, batch: int) -> None: ...

    def load(self, order: LoadModel) -> None:
        self.orders.append(f"load {order.model}")
        self.ordered.set()
        if order.model.partition(":")[0] in self.broken:
            self.report(ModelLoadFailed(order.partition, order.model, "it is broken"))
        elif not self.slow:
            asyncio.get_running_loop().call_soon(self._loaded, order)

    def _loaded(self, order: LoadModel) -> None:
        self.report(ModelLoaded(order.partition, order.model, TABLE))

    def unload(self, order: UnloadModel) -> None:
        self.orders.append(f"unload {order.model}")
        self.report(ModelUnloaded(order.partition, order.model))

    def combine(self, members: Sequence[Member]) -> list[Combined | Exception]:
        raise NotImplementedError

    def look_up_cache(self, member: Member) -> str | None:
        raise NotImplementedError

    def take_outputs(self, request: int) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        return {}, lambda: None

    def discard(self, request: int) -> None: ...


class NoTimer:
    """Never rings: what is due is due at once here."""

    def start(self, callback: Callable[[], None]) -> None: ...

    def arm(self, due_ns: int | None) -> None: ...

    def close(self) -> None: ...


class Served:
    """A gateway over repositories, without front ends and workers; nothing is loaded at first."""

    def __init__(
        self, *repositories: Path, memory_bytes: int = 0, count: int = 1, residency: ResidencySettings | None = None
    ) -> None:
        source = RevisionSource(repositories, 4, {}, {})
        partitions = [CpuPartition(f"cpu{number}", (number,)) for number in range(count)]
        names = [each.name for each in partitions]
        configs = [PartitionConfig(each.name, each.profile_kind, memory_bytes=memory_bytes) for each in partitions]
        config = ServerConfig(residency=residency or ResidencySettings())
        loading = Loading.DEMAND if config.residency.loading is LoadingMode.DEMAND else Loading.PLAN
        spec = msgspec.structs.replace(build_spec([], [], configs), residency=config.residency.config(loading))
        self.scheduler = Scheduler(spec, LivePlanner())
        self.inventory = Inventory(partitions)
        self.registry = ModelRegistry("1", [], (), self.inventory)
        metrics = ServerMetrics({}, names, queues=tuple, arena_bytes=lambda: 0)
        loads = LoadWaiter(self.inventory)
        self.executor = InstantExecutor(names)
        self.runtime = Runtime(
            self.scheduler,
            self.executor,
            clock=lambda: round(asyncio.get_running_loop().time() * 1e9),
            timer=NoTimer(),
            metrics=metrics,
            inventory=self.inventory,
            build_plan=build_plan,
        )
        executor = cast(MixedExecutor, self.executor)
        rollout = Rollout(
            config, {}, self.inventory, self.scheduler, self.runtime, executor, self.registry, metrics, loads
        )
        empty = Repository.scan(repositories, selection=Selection(()))
        deployed = DependencyGraph(deployed_from(empty, source))
        self.deployer = Deployer(source, deployed, self.registry, rollout, loads, self.inventory, recycle=False)
        self.runtime.start()

    @property
    def index(self) -> list[tuple[str, str, str]]:
        entries: list[IndexEntry] = RepositoryApi(self.registry).index("", ready_only=False)
        return [(f"{each.name}:{each.version}", each.state, each.reason) for each in entries]

    @property
    def keys(self) -> list[str]:
        return sorted(self.scheduler.pipelines)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        check_invariants(self.scheduler)


def served(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own, over the models m and n and the pipeline p, which needs m."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        for name in ("m", "n"):
            save(tmp_path, name)
        (tmp_path / "p").mkdir()
        (tmp_path / "p" / "pipeline.yaml").write_text(PIPELINE)

        async def whole() -> None:
            gateway = Served(tmp_path)
            try:
                await test(gateway, tmp_path)
            finally:
                gateway.deployer.close()
                gateway.runtime.close()

        asyncio.run(whole())

    del run.__wrapped__  # its arguments are not fixtures
    return run
