"""The composition root: builds a server out of its parts and runs it."""

import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic_ns
from typing import BinaryIO

from batcher.build import build_spec, pipeline_key
from batcher.config import PartitionConfig, SchedulerSpec
from batcher.journal import JournalWriter
from batcher.scheduler import Scheduler
from gateway.catalogue import Catalogue
from gateway.config import ServerConfig
from gateway.dataplane import DataPlane
from gateway.executors.worker import WorkerExecutor
from gateway.grpc import grpc_server
from gateway.http import build_app
from gateway.http_infer import InferRoute
from gateway.http_server import http_config, http_server
from gateway.logs import log
from gateway.metrics import Metrics
from gateway.plan import plan_pipeline
from gateway.runtime import Runtime
from gateway.server import PartitionWatch, Server
from models.errors import ConfigError
from models.pipeline import Pipeline
from models.pipeline_check import single_model
from models.repository import Broken, ModelEntry, Repository, entry_of_file, name_of_file
from mps.alarm import Alarm
from mps.cpu import default_partitions
from mps.messages import ModelFile
from mps.partition import CpuPartition
from mps.supervisor import WorkerSpec

logger = logging.getLogger(__name__)

_MIB = 1 << 20


def server_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("sluice-gateway")
    except PackageNotFoundError:
        return "unknown"


def read_models(directory: Path | None, files: Sequence[Path], config: ServerConfig) -> Repository:
    """What is to be served: a repository, or model files by themselves. Raises ConfigError for a bad directory."""
    sizes = config.batch_sizes()
    if directory is not None:
        return Repository.scan(directory, config.max_batch_size, sizes)
    models: dict[str, ModelEntry] = {}
    broken = []
    for file in files:
        name = name_of_file(file)
        try:
            entry = entry_of_file(file, sizes.get(name, config.max_batch_size))
            if entry.spec.key in models:
                raise ConfigError(
                    f"{file}: {models[entry.spec.key].path} has the same name; expected names that differ"
                )
            models[entry.spec.key] = entry
        except ConfigError as error:
            broken.append(Broken(name, None, str(error)))
    return Repository(models, {}, tuple(broken))


def build_server(config: ServerConfig, repository: Repository, journal: BinaryIO | None) -> Server:
    """All parts of a server, connected; it listens already, and its workers start when it runs.

    To be called on the event loop that is to run it. Raises ConfigError or PartitionError for settings that cannot be
    met, OSError for a port that is taken.
    """
    _check_names(config, repository)
    for each in repository.broken:
        log(logger, logging.ERROR, "cannot be served", name=each.name, version=each.version, reason=each.reason)
    partitions = _partitions(config)
    pipelines = [*(single_model(entry.spec) for entry in repository.models.values()), *repository.pipelines.values()]
    spec = _scheduler_spec(config, repository, pipelines, partitions)
    scheduler = Scheduler(spec)
    specs = {key: entry.spec for key, entry in repository.models.items()}
    plans = {
        pipeline_key(pipeline): plan_pipeline(pipeline, specs, [stage.verdicts for stage in scheduled.stages])
        for pipeline, scheduled in zip(pipelines, spec.pipelines, strict=True)
    }
    names = [partition.name for partition in partitions]
    catalogue = Catalogue(server_version(), pipelines, repository.broken, names)
    metrics = Metrics(
        {scheduled.name: [stage.name for stage in scheduled.stages] for scheduled in spec.pipelines},
        names,
        queue_depths=scheduler.queue_depths,
        arena_bytes=lambda: executor.arena_bytes,
    )
    watch = PartitionWatch(catalogue, metrics)
    executor = WorkerExecutor(
        _worker_specs(config, repository, spec, partitions),
        plans,
        specs,
        config.limits.input_arena_mb * _MIB,
        watch,
    )
    observe = None if journal is None else JournalWriter(journal.write, spec).record
    runtime = Runtime(scheduler, executor, clock=monotonic_ns, timer=Alarm(), metrics=metrics, observe=observe)
    dataplane = DataPlane(catalogue, runtime, config.default_slo_ms, monotonic_ns)
    infer = InferRoute(dataplane, config.max_body_bytes)
    http = http_server(http_config(build_app(catalogue, metrics), infer), config.host, config.http_port)
    grpc, grpc_port = grpc_server(dataplane, catalogue, config.host, config.grpc_port, config.max_body_bytes)
    return Server(
        catalogue=catalogue,
        runtime=runtime,
        executor=executor,
        watch=watch,
        http=http,
        grpc=grpc,
        address=(config.host, http.port, grpc_port),
        drain_timeout_s=config.drain_timeout_s,
    )


def _check_names(config: ServerConfig, repository: Repository) -> None:
    """Raise ConfigError for settings of a model that is not there, not even as a broken one."""
    served = sorted({entry.spec.name for entry in repository.models.values()})
    for name in sorted(config.models.keys() - {*served, *(each.name for each in repository.broken)}):
        raise ConfigError(f"models.{name}: there is no model of that name; those served are {', '.join(served)}")


def _partitions(config: ServerConfig) -> tuple[CpuPartition, ...]:
    if config.partitions is None or isinstance(config.partitions, int):
        return default_partitions(config.partitions)
    return config.partitions


def _scheduler_spec(
    config: ServerConfig, repository: Repository, pipelines: Sequence[Pipeline], partitions: Sequence[CpuPartition]
) -> SchedulerSpec:
    specs = [entry.spec for entry in repository.models.values()]
    return build_spec(
        specs,
        pipelines,
        [PartitionConfig(partition.name, partition.profile_kind) for partition in partitions],
        limits=config.limits.config(),
        policies=config.policies(specs),
        default_policy=config.policy.config(),
    )


def _worker_specs(
    config: ServerConfig, repository: Repository, spec: SchedulerSpec, partitions: Sequence[CpuPartition]
) -> list[WorkerSpec]:
    """Every partition holds every model."""
    files = tuple(
        ModelFile(
            model.key,
            str(entry.path.resolve()),
            entry.backend,
            entry.spec.menu,
            entry.spec.batchable,
            tuple((verdict.output, verdict.confidence) for verdict in model.verdicts),
        )
        for model in spec.models
        for entry in [repository.models[model.key]]
    )
    output_bytes = config.limits.output_arena_mb * _MIB
    return [WorkerSpec(partition, files, output_bytes) for partition in partitions]
