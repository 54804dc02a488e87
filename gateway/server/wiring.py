"""The composition root: builds a server out of its parts."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns, time_ns
from typing import NamedTuple, TypeAlias

import msgspec

from sluice.batcher.drivers.journal import JournalWriter
from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.decisions import ResizePartition, SetPartitions
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.initial_residency import InitialResidency, initial_residency
from sluice.batcher.settings.planner import planner_settings
from sluice.batcher.settings.spec_builder import build_spec, check_competition, check_strictness
from sluice.gateway.config.configured_partitions import (
    configured_partitions,
    partition_config,
    remote_config,
    triton_config,
)
from sluice.gateway.config.server_config import ModelControlMode, ServerConfig, check_arenas
from sluice.gateway.config.tracing import TraceMode
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.known_sizes import KnownSizes
from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.model_notes import log_batching
from sluice.gateway.deployment.placement_notes import note_initial, started_on_demand
from sluice.gateway.deployment.plan_metrics import PlanMetrics
from sluice.gateway.deployment.poll import Poll
from sluice.gateway.deployment.read import model_source
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.deployment.registry_metrics import RegistryMetrics
from sluice.gateway.deployment.residency_metrics import ResidencyMetrics, held_memory
from sluice.gateway.deployment.revision import RevisionSource, deployed_from
from sluice.gateway.deployment.rollout import Rollout
from sluice.gateway.deployment.stored_profiles import footprints, model_memory, stored_entries
from sluice.gateway.deployment.worker_files import worker_files
from sluice.gateway.executors.mixed import MixedExecutor
from sluice.gateway.executors.remote.executor import SharedParts
from sluice.gateway.executors.triton.discovery import NOTHING, Discovery
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.front_ends.front_ends import front_end_count
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.inference.model_calls import ModelCalls
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.management.repository_api import RepositoryApi
from sluice.gateway.observability.competition_metrics import CompetitionMetrics
from sluice.gateway.observability.fault_metrics import FaultMetrics
from sluice.gateway.observability.latency_summaries import LatencySummaries
from sluice.gateway.observability.load_metrics import LoadMetrics
from sluice.gateway.observability.load_report import LoadReport
from sluice.gateway.observability.log_settings import LogSettings
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.request_log import RequestLog
from sluice.gateway.observability.second_batch_metrics import SecondBatchMetrics
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.observability.traces.settings import TraceSettings
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.overview.live import LiveOverview
from sluice.gateway.overview.sources import Sources
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.partitions.latency_log import LatencyLog
from sluice.gateway.partitions.partition_log import log_change
from sluice.gateway.partitions.partition_metrics import PartitionMetrics
from sluice.gateway.partitions.scaling import Scaling, ScalingMetrics
from sluice.gateway.partitions.worker_memory import MemorySampler, WorkerMemory
from sluice.gateway.partitions.worker_output import launch_logged_worker
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.gateway.resizing.auto_resize import AutoResize
from sluice.gateway.resizing.resizing import ResizeMetrics, Resizing
from sluice.gateway.runtime.driver import Runtime, Timer
from sluice.gateway.server.client_servers import client_servers
from sluice.gateway.server.limits import Severity, check_limits, check_memory, host_memory
from sluice.gateway.server.reload import Reload
from sluice.gateway.server.remote_wiring import link_reports, remote_executor
from sluice.gateway.server.server import Server
from sluice.gateway.tensors.pipeline_wiring import PipelineWiring, wire_pipeline
from sluice.gateway.tensors.response_cache import ResponseCache
from sluice.gateway.tensors.stage_cache import StageCache
from sluice.gateway.tracing.export import SpanExport
from sluice.gateway.version import server_version
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.file import ProfileEntry
from sluice.models.repository.scan import REMOTE, Repository
from sluice.models.spec import ModelSpec
from sluice.models.units import ms_to_ns
from sluice.mps.alarm import Alarm
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.messages import ModelFile
from sluice.mps.nvidia.free_memory import free_capacity
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.host import cpu_quota
from sluice.mps.partitions.partition import GIVEN, CpuPartition, Partition
from sluice.mps.supervisor.child import Launch
from sluice.mps.supervisor.worker_spec import WorkerSpec

logger = logging.getLogger(__name__)

_MIB = 1 << 20

WriteLine: TypeAlias = Callable[[bytes], object]
"""Writes a line of a journal; raises OSError."""


class Surroundings(NamedTuple):
    """A gateway's machine: the clock in nanoseconds, an alarm on that clock, and the start of worker processes."""

    clock: Callable[[], int] = monotonic_ns
    timer: Callable[[], Timer] = Alarm
    launch: Launch = launch_logged_worker


THIS_MACHINE = Surroundings()


@dataclass(frozen=True, slots=True)
class Gateway:
    """All parts of a server but those that clients talk to."""

    registry: ModelRegistry
    inventory: Inventory
    scheduler: Scheduler
    runtime: Runtime
    executor: MixedExecutor
    metrics: ServerMetrics
    trace_settings: TraceSettings
    spans: SpanExport | None
    dataplane: LocalDataPlane
    repository: RepositoryApi
    deployer: Deployer
    resizing: Resizing
    auto_resize: AutoResize | None
    overview: Sources
    scaling: Scaling


def build_server(
    config: ServerConfig,
    repository: Repository,
    journal: WriteLine | None,
    triton: Discovery = NOTHING,
    processes: Mapping[str, TritonProcess] = {},
    mps: Mapping[str, MpsControl] = {},
    read_again: Callable[[], ServerConfig] | None = None,
) -> Server:
    """Build all parts of a server; it listens already, and its workers start when it runs.

    `read_again` reads the configuration again when the server is asked to (None: it stays). To be called on the event
    loop that is to run it. Raises ConfigError or PartitionError for settings that cannot be met, such as a port that
    is taken.
    """
    gateway = build_gateway(config, repository, journal, triton, processes, mps)
    control = ControlPlane(
        gateway.registry,
        gateway.repository,
        gateway.metrics.meters.statistics,
        gateway.dataplane.shared_memory,
        LogSettings(),
        gateway.trace_settings,
        monotonic_ns,
        time_ns() - monotonic_ns(),
        gateway.inventory,
        gateway.resizing,
        gateway.scaling,
    )
    poll = Poll(gateway.deployer, config.poll_s) if config.control is ModelControlMode.POLL else None
    residency = gateway.scheduler.spec.residency
    memory_sampler: MemorySampler | None = None
    if residency.packing is not None and residency.loading is Loading.DEMAND:
        memory_sampler = MemorySampler(WorkerMemory(gateway.inventory), gateway.runtime.report)
    return Server(
        registry=gateway.registry,
        inventory=gateway.inventory,
        runtime=gateway.runtime,
        executor=gateway.executor,
        client_servers=client_servers(
            config,
            gateway.dataplane,
            control,
            gateway.metrics,
            gateway.runtime.traces,
            gateway.executor.regions,
            LiveOverview(gateway.overview._replace(front_ends=front_end_count(config.front_ends))),
        ),
        reload=Reload(config, read_again or (lambda: config), poll),
        deployer=gateway.deployer,
        spans=gateway.spans,
        poll=poll,
        auto_resize=gateway.auto_resize,
        memory_sampler=memory_sampler,
    )


def build_gateway(
    config: ServerConfig,
    repository: Repository,
    journal: WriteLine | None,
    triton: Discovery = NOTHING,
    processes: Mapping[str, TritonProcess] = {},
    mps: Mapping[str, MpsControl] = {},
    surroundings: Surroundings = THIS_MACHINE,
) -> Gateway:
    """Build all parts of a server but those that clients talk to; otherwise as `build_server`."""
    _check_names(config, repository)
    check_arenas(config.limits)
    for each in repository.broken:
        log(logger, logging.ERROR, "cannot be served", name=each.name, version=each.version, reason=each.reason)
    log_batching(repository.models.values())
    core = _build_core(config, repository, triton)
    _log_limits(config, core)
    state = _build_state(config, core)
    execution = _build_execution(config, core, state, journal, processes, mps, surroundings)
    changes = _build_changes(config, core, state, execution)
    dataplane = LocalDataPlane(
        state.registry,
        execution.runtime,
        config.default_slo_ms,
        config.network_ms,
        surroundings.clock,
        SharedMemory(config.allow_client_shm, core.begin.spec.limits.memory_bytes, config.shm_prefix),
        execution.cache,
        config.statuses,
        config.client_key,
        config.front_door.id_bytes,
        execution.executor.bodies,
        execution.executor.responses,
    )
    dataplane.load_report = LoadReport(
        core.scheduler,
        execution.metrics.meters,
        lambda: execution.runtime.in_flight,
        lambda: execution.runtime.headrooms,
        surroundings.clock,
    )
    models = RepositoryApi(state.registry, changes.deployer, config.control, allow_upload=config.allow_upload)
    calls = ModelCalls(
        dataplane,
        execution.runtime,
        surroundings.clock,
        core.begin.spec.limits.memory_bytes,
        execution.executor.responses.has_responded,
        models,
    )
    state.registry.ask_model = execution.executor.says_ready
    execution.executor.answer_calls(calls, execution.runtime.submission)
    return Gateway(
        state.registry,
        state.inventory,
        core.scheduler,
        execution.runtime,
        execution.executor,
        execution.metrics,
        execution.trace_settings,
        execution.spans,
        dataplane,
        models,
        changes.deployer,
        changes.resizing,
        changes.auto_resize,
        execution.overview,
        execution.scaling,
    )


@dataclass(frozen=True, slots=True)
class _Core:
    """The scheduler, and the models and partitions that it was built from.

    `partitions` are those of this machine, and `kinds` has the kinds of these and of the remote ones, by name. `specs`
    and `stored` are the specs and the profiles of models by key; models of Triton servers have no profiles.
    `server_models` are the models that each Triton server may hold.
    """

    repository: Repository
    source: RevisionSource
    partitions: Sequence[Partition]
    kinds: Mapping[str, str]
    pipelines: Sequence[Pipeline]
    specs: Mapping[str, ModelSpec]
    stored: Mapping[str, Mapping[str, ProfileEntry]]
    server_models: Mapping[str, Mapping[str, ModelSpec]]
    begin: InitialResidency
    scheduler: Scheduler


def initial_model_bytes(config: ServerConfig, repository: Repository) -> int:
    """The memory of the host that the models take with which workers begin; raises as `build_gateway`."""
    return _initial_model_bytes(_build_core(config, repository, NOTHING))


def _initial_model_bytes(core: _Core) -> int:
    local = [each.name for each in core.partitions if isinstance(each, CpuPartition)]
    return sum(
        model_memory(core.repository.models[key], core.stored[key])
        for name in local
        for key in core.begin.residency[name]
    )


def _log_limits(config: ServerConfig, core: _Core) -> None:
    """Log which limits of this machine a server will meet. Raises ConfigError if it cannot start within them."""
    if config.local_partitions in (None, GIVEN):
        cores = [core for each in core.partitions for core in each.cores]
        about = {"partitions": len(core.partitions), "cores": cores, "available": len(available_cores())}
        if (quota := cpu_quota()) is not None:
            about["quota"] = quota
        log(logger, logging.INFO, "default partitions", **about)
    model_bytes = _initial_model_bytes(core)
    memory = check_memory(host_memory(config, core.partitions, model_bytes))
    if memory.severity is Severity.WRONG:  # the kernel would end it again and again
        raise ConfigError(memory.text)
    for finding in check_limits(config, core.partitions, model_bytes):
        if finding.severity is not Severity.OK:
            log(logger, logging.WARNING, f"{finding.part}: {finding.text}")


def _build_core(config: ServerConfig, repository: Repository, triton: Discovery) -> _Core:
    partitions = configured_partitions(config)
    check_capacity(partitions, free_capacity(partitions))
    pipelines = [*(single_model(entry.spec) for entry in repository.models.values()), *repository.pipelines.values()]
    kinds = {partition.name: partition.profile_kind for partition in partitions}
    kinds |= {slot: each.profile_kind for each in config.remote_classes for slot in each.slots}
    stored = {
        key: stored_entries(entry, kinds.values())
        for key, entry in repository.models.items()
        if entry.backend != REMOTE
    }
    specs = {key: entry.spec for key, entry in repository.models.items()}
    local = tuple(stored) if len(stored) < len(specs) else None
    elsewhere = tuple(key for key in stored if not specs[key].decoupled)
    server_models = {server.name: triton.may_hold(server, specs) for server in config.triton}
    configs = [
        *(partition_config(config, partition, local) for partition in partitions),
        *(
            remote_config(config, each, slot, None if len(elsewhere) == len(specs) else elsewhere)
            for each in config.remote_classes
            for slot in each.slots
        ),
        *(triton_config(config, server, tuple(server_models[server.name])) for server in config.triton),
    ]
    begin = initial_residency(_scheduler_spec(config, repository, pipelines, configs, stored), config.residency)
    return _Core(
        repository,
        model_source(config.repositories, config, triton),
        partitions,
        kinds,
        pipelines,
        specs,
        stored,
        server_models,
        begin,
        Scheduler(begin.spec, LivePlanner()),
    )


@dataclass(frozen=True, slots=True)
class _State:
    """The server's knowledge of its partitions and models outside the scheduler."""

    inventory: Inventory
    registry: ModelRegistry
    load_waiter: LoadWaiter


def _build_state(config: ServerConfig, core: _Core) -> _State:
    scheduler = core.scheduler
    scaled_classes = scheduler.spec.scaling.classes
    inventory = Inventory(
        core.partitions,
        [server.name for server in config.triton],
        remote={slot: each.profile_kind for each in config.remote_classes for slot in each.slots},
        vacant=[slot for scaled in scaled_classes for slot in scaled.slots[scaled.initial :]],
        starts_on_demand=any(scaled.to_zero for scaled in scaled_classes),
        strict=config.strict,
        memory_of=lambda name: {key: held.memory_bytes for key, held in held_memory(scheduler, name).items()},
    )
    inventory.subscribe(log_change)
    inventory.subscribe(LatencyLog(lambda: scheduler.spec.pipelines, config.default_slo_ms).changed)
    registry = ModelRegistry(
        server_version(), core.pipelines, core.repository.broken, inventory, strict=config.strict_readiness
    )
    note_initial(core.begin, registry)
    registry.mark_on_demand(started_on_demand(core.begin.spec))
    return _State(inventory, registry, LoadWaiter(inventory))


@dataclass(frozen=True, slots=True)
class _Execution:
    """The executor, the runtime that drives it, and the metrics of their work; `overview` is what the page reads."""

    executor: MixedExecutor
    runtime: Runtime
    metrics: ServerMetrics
    trace_settings: TraceSettings
    spans: SpanExport | None
    cache: ResponseCache | None
    overview: Sources
    scaling: Scaling


def _build_execution(
    config: ServerConfig,
    core: _Core,
    state: _State,
    journal: WriteLine | None,
    processes: Mapping[str, TritonProcess],
    mps: Mapping[str, MpsControl],
    surroundings: Surroundings,
) -> _Execution:
    spec, scheduler, inventory = core.begin.spec, core.scheduler, state.inventory
    statistics = Statistics()
    clock = surroundings.clock
    cache = _response_cache(config, state.registry, statistics, clock)
    files = worker_files(spec.models, core.repository.models, core.stored, core.kinds)
    workers = WorkerExecutor(
        _worker_specs(config, core, files),
        _pipeline_wirings(core.pipelines, spec, core.specs),
        core.specs,
        config.limits.input_arena_mb * _MIB,
        config.batch_timeout_s,
        quarantine=config.quarantine,
        controls=mps,
        cache=None if cache is None else StageCache(cache),
        spare=config.spare_worker,
        launch=surroundings.launch,
    )
    confidence_specs = {model.key: model.confidences for model in spec.models}
    remote = None
    if config.remote_classes:
        shared = SharedParts(
            workers.assembly, workers.bodies, workers.metrics, workers.note_loaded, workers.note_readiness
        )
        remote = remote_executor(config, shared, core.specs, files, core.begin.residency, clock)
        inventory.link_of = link_reports(remote)
    executor = MixedExecutor(workers, config.triton, core.server_models, confidence_specs, clock, processes, remote)
    metrics = ServerMetrics(
        {scheduled.name: [stage.name for stage in scheduled.stages] for scheduled in spec.pipelines},
        inventory.names,
        queues=lambda: _queues(scheduler),
        arena_bytes=lambda: executor.arena_bytes,
        corrections=lambda: _corrections(scheduler),
        breakers=lambda: executor.breakers,
        learned=lambda: _learned(scheduler),
        statistics=statistics,
        counter_latencies=config.metrics_config.counter_latencies,
    )
    metrics.include_models(workers.metrics.groups)
    metrics.include(PartitionMetrics(inventory))
    metrics.include(RegistryMetrics(state.registry))
    metrics.include(ResidencyMetrics(scheduler))
    recovery = workers.recovery
    metrics.include(FaultMetrics(scheduler, inventory.names, lambda: recovery.quarantined))
    metrics.include(CompetitionMetrics(scheduler.dispatcher.competition))
    metrics.include(SecondBatchMetrics(scheduler.dispatcher.second_batches))
    if config.triton:
        metrics.include(executor.statistics)
    summaries = None
    if config.metrics_config.summary_latencies:
        summaries = LatencySummaries(config.metrics_config.quantiles, clock)
        metrics.include(summaries)
    spans = None
    if config.trace.mode is TraceMode.OPENTELEMETRY:
        spans = SpanExport(config.trace.opentelemetry, server_version())
        metrics.include(spans)
    trace_settings = TraceSettings(config.trace, state.registry, None if spans is None else spans.export)
    runtime = Runtime(
        scheduler,
        executor,
        clock=clock,
        timer=surroundings.timer(),
        metrics=metrics,
        inventory=inventory,
        observe=None if journal is None else JournalWriter(journal, spec).record,
        trace_requests=config.trace_requests,
        build_plan=build_plan,
        on_began=trace_settings.began if trace_settings.has_spans else None,
        on_ended=_on_ended(config, trace_settings, summaries),
    )
    default_slo_ns = ms_to_ns(config.default_slo_ms)
    scaling = Scaling(_scaled_classes(config), scheduler.scaler.status, {} if remote is None else remote.sources)
    if spec.scaling.classes:
        metrics.include(ScalingMetrics(scheduler.scaler.status))
        runtime.carry_out_with(SetPartitions, scaling.carry_out)
    metrics.include(PlanMetrics(scheduler, lambda: runtime.plan_failures))
    metrics.include(LoadMetrics(scheduler, metrics.meters, clock, default_slo_ns, runtime.find_headrooms))
    overview = Sources(
        state.registry,
        inventory,
        scheduler,
        metrics.meters,
        runtime.traces,
        in_flight=lambda: runtime.in_flight,
        headrooms=lambda: runtime.headrooms,
        has_failed=runtime.failed.is_set,
        quarantined=lambda: recovery.quarantined,
        watch_batches=runtime.watch_batches,
        clock=clock,
        time_of_day=time_ns,
    )
    return _Execution(executor, runtime, metrics, trace_settings, spans, cache, overview, scaling)


def _on_ended(
    config: ServerConfig, traces: TraceSettings, summaries: LatencySummaries | None
) -> Callable[[Trace], None] | None:
    """The receiver of the requests that have their outcomes; None if there is none."""
    receivers = [traces.ended] if traces.available else []
    if config.request_log.is_on:
        receivers.append(RequestLog(config.request_log).ended)
    if summaries is not None:
        receivers.append(summaries.ended)
    if len(receivers) < 2:
        return receivers[0] if receivers else None

    def ended(trace: Trace) -> None:
        for receive in receivers:
            receive(trace)

    return ended


@dataclass(frozen=True, slots=True)
class _Changes:
    """The parts that change a running server: the models that it serves, and the shares of its partitions."""

    deployer: Deployer
    resizing: Resizing
    auto_resize: AutoResize | None


def _build_changes(config: ServerConfig, core: _Core, state: _State, execution: _Execution) -> _Changes:
    source, inventory = core.source, state.inventory
    rollout = Rollout(
        config,
        source.remote,
        inventory,
        core.scheduler,
        execution.runtime,
        execution.executor,
        state.registry,
        execution.metrics,
        state.load_waiter,
    )
    dependencies = DependencyGraph(deployed_from(core.repository, source))
    deployer = Deployer(
        source, dependencies, state.registry, rollout, state.load_waiter, inventory, recycle=config.recycle
    )
    beside = [CpuPartition(server.name, server.cores) for server in config.triton if server.cores]
    resizing = Resizing(
        inventory,
        dependencies,
        rollout,
        execution.executor,
        beside,
        lambda partition: partition_config(config, partition),
    )
    execution.metrics.include(ResizeMetrics(resizing.done))
    if config.balance is None:
        return _Changes(deployer, resizing, None)
    taken = [core for each in beside for core in each.cores]
    auto_resize = AutoResize(
        config.balance,
        inventory,
        resizing,
        lambda: execution.metrics.meters.busy_ns,
        taken,
        KnownSizes(dependencies),
        lambda partition: partition_config(config, partition),
        execution.runtime.report,
    )
    execution.runtime.carry_out_with(ResizePartition, auto_resize.order)
    return _Changes(deployer, resizing, auto_resize)


def _response_cache(
    config: ServerConfig, registry: ModelRegistry, statistics: Statistics, clock: Callable[[], int]
) -> ResponseCache | None:
    """The cache of responses and of stage outputs, if there is to be one."""
    if config.cache_bytes:
        return ResponseCache(config.cache_bytes, statistics, clock)
    for name in registry.caching():
        log(logger, logging.WARNING, "response_cache has no effect without cache_bytes", name=name)
    return None


def _queues(scheduler: Scheduler) -> Iterator[tuple[str, int, int]]:
    """The waiting requests and rows of each model, one by one; models may come and go meanwhile."""
    for key in list(scheduler.dispatcher.models):
        yield key, *scheduler.queued(key)


def _corrections(scheduler: Scheduler) -> Iterator[tuple[str, str, float]]:
    """The factors by which batches take longer than their tables say, by model and kind of partition, one by one."""
    for key, model in list(scheduler.dispatcher.models.items()):
        for kind, estimate in list(model.estimates.items()):
            yield key, kind, estimate.correction


def _learned(scheduler: Scheduler) -> Iterator[tuple[str, str, int]]:
    """The batch sizes that policies have learned, by model and partition, one by one."""
    for key, learner in list(scheduler.dispatcher.fleet.learners.items()):
        for partition, rows in learner.sizes().items():
            yield key, partition, rows


def _check_names(config: ServerConfig, repository: Repository) -> None:
    """Raise ConfigError for settings of a model that is not there, not even as a broken one, and cannot come later."""
    if config.control is not ModelControlMode.NONE:
        return
    served = sorted({entry.spec.name for entry in repository.models.values()})
    broken = {each.name for each in repository.broken}
    for name in sorted(
        config.residency.names - {*served, *broken, *(each.name for each in repository.pipelines.values())}
    ):
        raise ConfigError(f"residency: there is no model or pipeline {name}")
    for name in sorted(config.models.keys() - {*served, *broken}):
        raise ConfigError(f"models.{name}: there is no model of that name; those served are {', '.join(served)}")


def _scheduler_spec(
    config: ServerConfig,
    repository: Repository,
    pipelines: Sequence[Pipeline],
    partitions: Sequence[PartitionConfig],
    stored: Mapping[str, Mapping[str, ProfileEntry]],
) -> SchedulerSpec:
    specs = [entry.spec for entry in repository.models.values()]
    spec = build_spec(
        specs,
        config.with_defaults(pipelines),
        partitions,
        limits=config.limits.config(),
        policies=config.policies(specs),
        instances=config.instance_configs(specs),
        default_policy=config.policy.config(),
        memory_of={key: model_memory(repository.models[key], entries) for key, entries in stored.items()},
        uses_cache=config.cache_bytes > 0,
        planner=planner_settings(config.planner).config(),
    )
    known = {key: footprints(repository.models[key], entries) for key, entries in stored.items()}
    scaling = ScalingConfig(tuple(_scaled_classes(config).values()))
    spec = config.residency.apply(spec, known)
    check_competition(spec.pipelines, spec.partitions)
    check_strictness(config.strict_pipelines(pipelines), spec)
    return msgspec.structs.replace(spec, resizing=config.balance, scaling=scaling)


def _scaled_classes(config: ServerConfig) -> dict[str, ScaledClass]:
    """The classes whose numbers of partitions follow the load, by name."""
    return {each.name: scaled for each in config.remote_classes if (scaled := each.scaled) is not None}


def _pipeline_wirings(
    pipelines: Sequence[Pipeline], spec: SchedulerSpec, specs: Mapping[str, ModelSpec]
) -> dict[str, PipelineWiring]:
    """The tensor wiring of each pipeline, for the executor."""
    return {
        scheduled.name: wire_pipeline(pipeline, specs, [stage.confidences for stage in scheduled.stages])
        for pipeline, scheduled in zip(pipelines, spec.pipelines, strict=True)
    }


def _worker_specs(config: ServerConfig, core: _Core, files: Mapping[str, Mapping[str, ModelFile]]) -> list[WorkerSpec]:
    """Every partition may hold every model, begins with some, and knows the stored profiles."""
    output_bytes = config.limits.output_arena_mb * _MIB
    return [
        WorkerSpec(
            partition,
            tuple(files[partition.name].values()),
            output_bytes,
            core.begin.residency[partition.name],
            config.model_loading,
        )
        for partition in core.partitions
    ]
