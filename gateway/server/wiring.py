"""The composition root: builds a server out of its parts and runs it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import BinaryIO

from sluice.batcher.drivers.journal import JournalWriter
from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.spec_builder import build_spec
from sluice.gateway.config.arenas import check_arenas
from sluice.gateway.config.configured_partitions import configured_partitions, partition_config, triton_config
from sluice.gateway.config.server_config import Control, ServerConfig
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.held_memory import held_memory
from sluice.gateway.deployment.initial_residency import initial_residency
from sluice.gateway.deployment.known_sizes import KnownSizes
from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.poll import Poll
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.deployment.residency_metrics import ResidencyMetrics
from sluice.gateway.deployment.revision import RevisionSource, deployed_from
from sluice.gateway.deployment.rollout import Deployment
from sluice.gateway.deployment.stored_profiles import footprints, model_memory, stored_entries
from sluice.gateway.deployment.worker_files import worker_files
from sluice.gateway.executors.triton.discovery import NOTHING, Discovery, discover
from sluice.gateway.executors.triton.executor import MixedExecutor
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.http.metrics_server import MetricsServer
from sluice.gateway.observability.fault_metrics import FaultMetrics
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.trace_settings import TraceSettings
from sluice.gateway.partitions.states import PartitionStates
from sluice.gateway.resizing.auto_resize import AutoResize
from sluice.gateway.resizing.plan_steps import PlanSteps, watched
from sluice.gateway.resizing.resize_metrics import ResizeMetrics
from sluice.gateway.resizing.resizing import Resizing
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.server.front_ends import front_ends, response_cache
from sluice.gateway.server.server import PartitionWatch, Server
from sluice.gateway.tensors.pipeline_wiring import PipelineWiring, plan_pipeline
from sluice.gateway.tensors.stage_cache import StageCache
from sluice.gateway.version import server_version
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.file import ProfileEntry
from sluice.models.repository.scan import (
    EVERYTHING,
    REMOTE,
    BrokenEntry,
    ModelEntry,
    Repository,
    Selection,
    entry_of_file,
    name_of_file,
)
from sluice.models.spec import ModelSpec
from sluice.models.triton_config.instance_groups import CPU, GPU
from sluice.mps.alarm import Alarm
from sluice.mps.daemon.control import MpsControl
from sluice.mps.nvidia.free_memory import free_capacity
from sluice.mps.partitions.balance import ResizeTrigger
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.partition import CpuPartition, Partition
from sluice.mps.supervisor.worker_spec import WorkerSpec

logger = logging.getLogger(__name__)

_MIB = 1 << 20


def find_triton_models(config: ServerConfig, processes: Mapping[str, TritonProcess]) -> Discovery:
    """What the configured Triton servers hold; blocks until they have answered, or have had their time."""
    sizes = config.batch_sizes()
    found = discover(config.triton, lambda name: sizes.get(name, config.max_batch_size), processes)
    for server, reason in found.unreachable.items():
        log(logger, logging.ERROR, "triton could not be asked for its models", partition=server, reason=reason)
    return found


def read_models(
    directories: Sequence[Path], files: Sequence[Path], config: ServerConfig, triton: Discovery = NOTHING
) -> Repository:
    """What is to be served: repositories, or model files by themselves, and what Triton servers hold besides.

    Of repositories that clients load from, only what the server is to begin with. Raises ConfigError for a bad
    directory.
    """
    sizes = config.batch_sizes()
    source = model_source(directories, config, triton)
    remote = dict(source.remote)
    if directories:
        selection, missing = _selection(source, config)
        repository = Repository.scan(directories, config.max_batch_size, sizes, remote, selection, source.kinds)
        unknown = triton.unknown(config.triton, {entry.spec.name for entry in repository.models.values()})
        return replace(repository, broken=(*repository.broken, *missing, *unknown))
    models = remote.copy()
    broken = list(
        triton.unknown(config.triton, {*map(name_of_file, files), *(spec.name for spec in triton.specs.values())})
    )
    for file in files:
        name = name_of_file(file)
        try:
            entry = entry_of_file(file, sizes.get(name, config.max_batch_size))
            if entry.spec.key in models.keys() - remote.keys():
                raise ConfigError(
                    f"{file}: {models[entry.spec.key].path} has the same name; expected names that differ"
                )
            models[entry.spec.key] = entry
        except ConfigError as error:
            broken.append(BrokenEntry(name, None, str(error)))
    return Repository(models, {}, tuple(broken))


def model_source(directories: Sequence[Path], config: ServerConfig, triton: Discovery) -> RevisionSource:
    """Where models come from."""
    remote = {key: ModelEntry(spec, Path(spec.name), REMOTE) for key, spec in triton.specs.items()}
    listed = config.partitions if isinstance(config.partitions, tuple) else ()
    kinds = frozenset(CPU if isinstance(each, CpuPartition) else GPU for each in listed) or {CPU}
    return RevisionSource(tuple(directories), config.max_batch_size, config.batch_sizes(), remote, kinds)


def _selection(source: RevisionSource, config: ServerConfig) -> tuple[Selection, list[BrokenEntry]]:
    """What a server begins with, and what of that is not there."""
    if config.control is not Control.EXPLICIT or "*" in config.load_models:
        return EVERYTHING, []
    names = source.needed(config.load_models, {}, {})
    missing = [name for name in config.load_models if name not in names]
    return Selection(names), [BrokenEntry(name, None, "there is no such entry in the repository") for name in missing]


def build_server(
    config: ServerConfig,
    repository: Repository,
    journal: BinaryIO | None,
    triton: Discovery = NOTHING,
    processes: Mapping[str, TritonProcess] = {},
    mps: Mapping[str, MpsControl] = {},
) -> Server:
    """All parts of a server, connected; it listens already, and its workers start when it runs.

    To be called on the event loop that is to run it. Raises ConfigError or PartitionError for settings that cannot be
    met, such as a port that is taken.
    """
    _check_names(config, repository)
    check_arenas(config.limits)
    for each in repository.broken:
        log(logger, logging.ERROR, "cannot be served", name=each.name, version=each.version, reason=each.reason)
    partitions = configured_partitions(config)
    check_capacity(partitions, free_capacity(partitions))
    pipelines = [*(single_model(entry.spec) for entry in repository.models.values()), *repository.pipelines.values()]
    kinds = [partition.profile_kind for partition in partitions]
    stored = {key: stored_entries(entry, kinds) for key, entry in repository.models.items() if entry.backend != REMOTE}
    specs = {key: entry.spec for key, entry in repository.models.items()}
    local = tuple(stored) if len(stored) < len(specs) else None
    holds = {server.name: triton.may_hold(server, specs) for server in config.triton}
    configs = [
        *(partition_config(config, partition, local) for partition in partitions),
        *(triton_config(config, server, tuple(holds[server.name])) for server in config.triton),
    ]
    begin = initial_residency(_scheduler_spec(config, repository, pipelines, configs, stored), config.residency)
    spec = begin.spec
    scheduler = Scheduler(spec, LivePlanner())
    partition_names = [each.name for each in configs]
    catalogue = ModelRegistry(
        server_version(), pipelines, repository.broken, partition_names, strict=config.strict_readiness
    )
    begin.announce(catalogue)
    states = PartitionStates(
        partitions, lambda name: {key: held.memory_bytes for key, held in held_memory(scheduler, name).items()}
    )
    metrics = ServerMetrics(
        {scheduled.name: [stage.name for stage in scheduled.stages] for scheduled in spec.pipelines},
        partition_names,
        queue_depths=scheduler.queue_depths,
        arena_bytes=lambda: executor.arena_bytes,
        corrections=lambda: _corrections(scheduler),
        breakers=lambda: executor.breakers if isinstance(executor, MixedExecutor) else {},
        enforced=states.enforced,
    )
    loads = LoadWaiter()
    watch = PartitionWatch(catalogue, metrics, loads, states, strict=config.strict)
    cache = response_cache(config, catalogue, metrics)
    workers = WorkerExecutor(
        _worker_specs(config, repository, spec, partitions, stored, begin.residency),
        _pipeline_plans(pipelines, spec, specs),
        specs,
        config.limits.input_arena_mb * _MIB,
        watch,
        quarantine=config.quarantine,
        controls=mps,
        cache=None if cache is None else StageCache(cache),
    )
    metrics.include(ResidencyMetrics(scheduler))
    metrics.include(FaultMetrics(scheduler, metrics.failures, partition_names, lambda: workers.recovery.quarantined))
    verdicts = {model.key: model.verdicts for model in spec.models}
    executor: WorkerExecutor | MixedExecutor = workers
    if config.triton:
        executor = MixedExecutor(workers, config.triton, holds, verdicts, watch, monotonic_ns, processes)
        metrics.include(executor.statistics)
    observe = None if journal is None else JournalWriter(journal.write, spec).record
    trace_settings = TraceSettings(config.trace, catalogue)
    runtime = Runtime(
        scheduler,
        executor,
        clock=monotonic_ns,
        timer=Alarm(),
        metrics=metrics,
        observe=observe,
        trace_requests=config.trace_requests,
        build_plan=build_plan,
        on_ended=trace_settings.ended if trace_settings.available else None,
    )
    source = model_source(config.repositories, config, triton)
    deployment = Deployment(config, source.remote, states, scheduler, runtime, executor, catalogue, metrics, loads)
    names = DependencyGraph(deployed_from(repository, source))
    lifecycle = Deployer(source, names, catalogue, deployment, loads, recycle=config.recycle)
    beside = [CpuPartition(server.name, server.cores) for server in config.triton if server.cores]
    resizing = Resizing(
        states, names, deployment, executor, beside, lambda partition: partition_config(config, partition)
    )
    auto_resize = None
    if config.balance is not None:
        taken = [core for each in beside for core in each.cores]
        plan = None
        if config.balance.by is ResizeTrigger.PLAN:
            plan = PlanSteps(
                config.balance,
                {each.name: each.cores for each in partitions if isinstance(each, CpuPartition)},
                lambda: watched(scheduler, monotonic_ns(), _corrections(scheduler)),
                KnownSizes(names).tables,
                lambda partition: partition_config(config, partition),
            )
        auto_resize = AutoResize(config.balance, states, resizing, metrics.busy_ns, taken, plan)
    metrics.include(ResizeMetrics(resizing.done))
    http, grpc, grpc_port = front_ends(
        config,
        catalogue,
        lifecycle,
        runtime,
        metrics,
        trace_settings,
        states,
        resizing,
        spec.limits.memory_bytes,
        cache,
    )
    return Server(
        catalogue=catalogue,
        runtime=runtime,
        executor=executor,
        watch=watch,
        http=http,
        grpc=grpc,
        address=(config.host, http.port, grpc_port),
        drain_timeout_s=config.drain_timeout_s,
        lifecycle=lifecycle,
        poll=Poll(lifecycle, config.poll_s) if config.control is Control.POLL else None,
        auto_resize=auto_resize,
        metrics=None if config.metrics_port is None else MetricsServer(metrics, config.host, config.metrics_port),
    )


def _corrections(scheduler: Scheduler) -> dict[tuple[str, str], float]:
    """How many times as long as their tables say batches take, by model and kind of partition."""
    return {
        (key, kind): estimate.correction
        for key, model in scheduler.dispatcher.models.items()
        for kind, estimate in model.estimates.items()
    }


def _check_names(config: ServerConfig, repository: Repository) -> None:
    """Raise ConfigError for settings of a model that is not there, not even as a broken one, nor may come."""
    if config.control is not Control.NONE:
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
        pipelines,
        partitions,
        limits=config.limits.config(),
        policies=config.policies(specs),
        default_policy=config.policy.config(),
        memory_of={key: model_memory(repository.models[key], entries) for key, entries in stored.items()},
        recalls=config.cache_bytes > 0,
    )
    known = {key: footprints(repository.models[key], entries) for key, entries in stored.items()}
    return config.residency.apply(spec, known)


def _pipeline_plans(
    pipelines: Sequence[Pipeline], spec: SchedulerSpec, specs: Mapping[str, ModelSpec]
) -> dict[str, PipelineWiring]:
    """What executors need to know of each pipeline."""
    return {
        scheduled.name: plan_pipeline(pipeline, specs, [stage.verdicts for stage in scheduled.stages])
        for pipeline, scheduled in zip(pipelines, spec.pipelines, strict=True)
    }


def _worker_specs(
    config: ServerConfig,
    repository: Repository,
    spec: SchedulerSpec,
    partitions: Sequence[Partition],
    stored: Mapping[str, Mapping[str, ProfileEntry]],
    residency: Mapping[str, tuple[str, ...]],
) -> list[WorkerSpec]:
    """Every partition may hold every model, begins with some, and is told what stored profiles say."""
    files = worker_files(spec.models, repository.models, stored, partitions)
    output_bytes = config.limits.output_arena_mb * _MIB
    return [
        WorkerSpec(partition, tuple(files[partition.name].values()), output_bytes, residency[partition.name])
        for partition in partitions
    ]
