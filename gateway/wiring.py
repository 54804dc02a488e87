"""The composition root: builds a server out of its parts and runs it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import BinaryIO

from grpc import aio

from batcher.build import build_spec
from batcher.config import PartitionConfig, SchedulerSpec
from batcher.journal import JournalWriter
from batcher.planner.build import build_plan
from batcher.planner.live import LivePlanner
from batcher.planner.residency import ModelNeed, place_models
from batcher.scheduler import Scheduler
from gateway.catalogue import Catalogue
from gateway.config import Control, ServerConfig
from gateway.controlplane import ControlPlane
from gateway.dataplane import DataPlane
from gateway.executors.triton import MixedExecutor
from gateway.executors.triton_discovery import NOTHING, Discovery, discover
from gateway.executors.triton_process import TritonProcess
from gateway.executors.triton_settings import TritonSettings
from gateway.executors.worker import WorkerExecutor
from gateway.grpc import grpc_server
from gateway.http import build_app
from gateway.http_infer import InferRoute
from gateway.http_server import HttpServer, http_config, http_server
from gateway.lifecycle import Lifecycle
from gateway.lifecycle_deployment import Deployment
from gateway.lifecycle_loads import Loads
from gateway.lifecycle_names import Names
from gateway.lifecycle_poll import Poll
from gateway.lifecycle_revision import Source, deployed_from
from gateway.log_settings import LogSettings
from gateway.logs import log
from gateway.metrics import Metrics
from gateway.plan import PipelinePlan, plan_pipeline
from gateway.repository_api import RepositoryApi
from gateway.response_cache import ResponseCache
from gateway.restricted import Restrictions
from gateway.runtime import Runtime
from gateway.server import PartitionWatch, Server
from gateway.shared_memory import SharedMemory
from gateway.stored_profiles import model_memory, stored_entries
from gateway.trace_settings import TraceSettings
from gateway.worker_files import worker_files
from models.errors import ConfigError
from models.pipeline import Pipeline
from models.pipeline_check import single_model
from models.profile_file import Entry
from models.repository import (
    ALL,
    REMOTE,
    Broken,
    ModelEntry,
    Repository,
    Selection,
    entry_of_file,
    name_of_file,
)
from models.spec import ModelSpec
from mps.alarm import Alarm
from mps.cpu import available_cores, default_partitions
from mps.partition import CpuPartition
from mps.supervisor import WorkerSpec

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_SECONDS_PER_HOUR = 3600


def server_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("sluice-gateway")
    except PackageNotFoundError:
        return "unknown"


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
        repository = Repository.scan(directories, config.max_batch_size, sizes, remote, selection)
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
            broken.append(Broken(name, None, str(error)))
    return Repository(models, {}, tuple(broken))


def model_source(directories: Sequence[Path], config: ServerConfig, triton: Discovery) -> Source:
    """Where models come from."""
    remote = {key: ModelEntry(spec, Path(spec.name), REMOTE) for key, spec in triton.specs.items()}
    return Source(tuple(directories), config.max_batch_size, config.batch_sizes(), remote)


def _selection(source: Source, config: ServerConfig) -> tuple[Selection, list[Broken]]:
    """What a server begins with, and what of that is not there."""
    if config.control is not Control.EXPLICIT or "*" in config.load_models:
        return ALL, []
    names = source.needed(config.load_models, {}, {})
    missing = [name for name in config.load_models if name not in names]
    return Selection(names), [Broken(name, None, "there is no such entry in the repository") for name in missing]


def configured_partitions(config: ServerConfig) -> tuple[CpuPartition, ...]:
    """The partitions of the settings; raises PartitionError for a number that cannot be had."""
    if config.partitions is None or isinstance(config.partitions, int):
        return default_partitions(config.partitions)
    return config.partitions


def build_server(
    config: ServerConfig,
    repository: Repository,
    journal: BinaryIO | None,
    triton: Discovery = NOTHING,
    processes: Mapping[str, TritonProcess] = {},
) -> Server:
    """All parts of a server, connected; it listens already, and its workers start when it runs.

    To be called on the event loop that is to run it. Raises ConfigError or PartitionError for settings that cannot be
    met, OSError for a port that is taken.
    """
    _check_names(config, repository)
    for each in repository.broken:
        log(logger, logging.ERROR, "cannot be served", name=each.name, version=each.version, reason=each.reason)
    partitions = configured_partitions(config)
    pipelines = [*(single_model(entry.spec) for entry in repository.models.values()), *repository.pipelines.values()]
    kinds = [partition.profile_kind for partition in partitions]
    stored = {key: stored_entries(entry, kinds) for key, entry in repository.models.items() if entry.backend != REMOTE}
    specs = {key: entry.spec for key, entry in repository.models.items()}
    local = tuple(stored) if len(stored) < len(specs) else None
    holds = {server.name: triton.may_hold(server, specs) for server in config.triton}
    configs = [
        *(partition_config(config, partition, local) for partition in partitions),
        *(_triton_config(config, server, tuple(holds[server.name])) for server in config.triton),
    ]
    spec = _scheduler_spec(config, repository, pipelines, configs, stored)
    scheduler = Scheduler(spec, LivePlanner())
    partition_names = [each.name for each in configs]
    catalogue = Catalogue(server_version(), pipelines, repository.broken, partition_names)
    metrics = Metrics(
        {scheduled.name: [stage.name for stage in scheduled.stages] for scheduled in spec.pipelines},
        partition_names,
        queue_depths=scheduler.queue_depths,
        arena_bytes=lambda: executor.arena_bytes,
        corrections=lambda: _corrections(scheduler),
        breakers=lambda: executor.breakers if isinstance(executor, MixedExecutor) else {},
    )
    loads = Loads()
    watch = PartitionWatch(catalogue, metrics, loads)
    workers = WorkerExecutor(
        _worker_specs(config, repository, spec, partitions, stored, _residency(spec, catalogue)),
        _pipeline_plans(pipelines, spec, specs),
        specs,
        config.limits.input_arena_mb * _MIB,
        watch,
    )
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
    deployment = Deployment(config, source.remote, partitions, scheduler, runtime, executor, catalogue, metrics, loads)
    names = Names(deployed_from(repository, source))
    lifecycle = Lifecycle(source, names, catalogue, deployment, loads, recycle=config.recycle)
    http, grpc, grpc_port = _front_ends(
        config, catalogue, lifecycle, runtime, metrics, trace_settings, spec.limits.memory_bytes
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
    )


def _front_ends(
    config: ServerConfig,
    catalogue: Catalogue,
    lifecycle: Lifecycle,
    runtime: Runtime,
    metrics: Metrics,
    trace_settings: TraceSettings,
    max_tensor_bytes: int,
) -> tuple[HttpServer, aio.Server, int]:
    """The servers of both protocols, and the port of the second."""
    shared_memory = SharedMemory(config.allow_client_shm, max_tensor_bytes)
    cache = _response_cache(config, catalogue, metrics)
    dataplane = DataPlane(catalogue, runtime, config.default_slo_ms, monotonic_ns, shared_memory, cache)
    control = ControlPlane(
        catalogue,
        RepositoryApi(catalogue, lifecycle, config.control),
        metrics.statistics,
        shared_memory,
        LogSettings(),
        trace_settings,
        monotonic_ns,
        time_ns() - monotonic_ns(),
    )
    restrictions = Restrictions(config.restricted)
    context = credentials = None
    if config.tls is not None:
        context, credentials = config.tls.ssl_context(), config.tls.grpc_credentials()
    app = build_app(control, metrics, runtime.traces, config.max_body_bytes, restrictions)
    settings = http_config(app, InferRoute(dataplane, config.max_body_bytes), restrictions=restrictions)
    http = http_server(settings, config.host, config.http_port, context)
    grpc, grpc_port = grpc_server(
        dataplane,
        control,
        config.host,
        config.grpc_port,
        config.max_body_bytes,
        restrictions=restrictions,
        credentials=credentials,
    )
    return http, grpc, grpc_port


def _response_cache(config: ServerConfig, catalogue: Catalogue, metrics: Metrics) -> ResponseCache | None:
    if config.cache_bytes:
        return ResponseCache(config.cache_bytes, metrics.statistics, monotonic_ns)
    for name in catalogue.caching():
        log(logger, logging.WARNING, "response_cache has no effect without cache_bytes", name=name)
    return None


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
    for name in sorted(config.models.keys() - {*served, *(each.name for each in repository.broken)}):
        raise ConfigError(f"models.{name}: there is no model of that name; those served are {', '.join(served)}")


def _scheduler_spec(
    config: ServerConfig,
    repository: Repository,
    pipelines: Sequence[Pipeline],
    partitions: Sequence[PartitionConfig],
    stored: Mapping[str, Mapping[str, Entry]],
) -> SchedulerSpec:
    specs = [entry.spec for entry in repository.models.values()]
    return build_spec(
        specs,
        pipelines,
        partitions,
        limits=config.limits.config(),
        policies=config.policies(specs),
        default_policy=config.policy.config(),
        memory_of={key: model_memory(repository.models[key], entries) for key, entries in stored.items()},
    )


def partition_config(
    config: ServerConfig, partition: CpuPartition, models: tuple[str, ...] | None = None
) -> PartitionConfig:
    """A partition as the scheduler knows it, which may hold `models` only."""
    share = min(len(partition.cores) / len(available_cores()), 1.0)
    memory_bytes = 0 if partition.memory_mb is None else max(round(partition.memory_mb * _MIB), 1)
    price = config.prices.per_second(partition)
    return PartitionConfig(partition.name, partition.profile_kind, price, share, memory_bytes, models)


def _triton_config(config: ServerConfig, server: TritonSettings, models: tuple[str, ...]) -> PartitionConfig:
    hour = config.prices.gpu_hour if server.price is None else server.price
    return PartitionConfig(server.name, server.profile_kind, hour / _SECONDS_PER_HOUR, models=models)


def _pipeline_plans(
    pipelines: Sequence[Pipeline], spec: SchedulerSpec, specs: Mapping[str, ModelSpec]
) -> dict[str, PipelinePlan]:
    """What executors need to know of each pipeline."""
    return {
        scheduled.name: plan_pipeline(pipeline, specs, [stage.verdicts for stage in scheduled.stages])
        for pipeline, scheduled in zip(pipelines, spec.pipelines, strict=True)
    }


def _residency(spec: SchedulerSpec, catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """The keys of the models that each partition begins with; one for which none has room is not served."""
    needs = {model.key: ModelNeed(model.memory_bytes, replicas=model.replicas) for model in spec.models}
    placement = place_models(needs, spec.partitions)
    largest = max(partition.memory_bytes for partition in spec.partitions)
    for key in placement.unplaced:
        if needs[key].memory_bytes <= largest:
            log(logger, logging.WARNING, "model waits for demand, the others leave no room", model=key)
            catalogue.model_on_demand(key)
            continue
        reason = f"no partition has room for the {needs[key].memory_bytes / _MIB:.3g} MiB that it takes"
        log(logger, logging.ERROR, "model has no place", model=key, reason=reason)
        catalogue.model_load_failed(key, reason)
    return placement.residency


def _worker_specs(
    config: ServerConfig,
    repository: Repository,
    spec: SchedulerSpec,
    partitions: Sequence[CpuPartition],
    stored: Mapping[str, Mapping[str, Entry]],
    residency: Mapping[str, tuple[str, ...]],
) -> list[WorkerSpec]:
    """Every partition may hold every model, begins with some, and is told what stored profiles say."""
    files = worker_files(spec.models, repository.models, stored, partitions)
    output_bytes = config.limits.output_arena_mb * _MIB
    return [
        WorkerSpec(partition, tuple(files[partition.name].values()), output_bytes, residency[partition.name])
        for partition in partitions
    ]
