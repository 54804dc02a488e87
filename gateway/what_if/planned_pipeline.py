"""The pipeline that a plan is for: its objective, stage probabilities and scheduler spec.

Each function adds what it assumes to `assumptions`, for the answer to show.
"""

from pathlib import Path

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.settings.spec_builder import build_spec, check_competition, pipeline_key
from sluice.gateway.config.configured_partitions import partition_config
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.stored_profiles import look_up, model_memory
from sluice.models.errors import ConfigError, ModelNotFound
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.file import ProfileEntry
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.models.slo import MAX_SLO_MS
from sluice.mps.partitions.partition import Partition

ESCALATION = 0.5
"""Share of the offered rows that a conditional stage is assumed to run."""

_MIB = 1 << 20


def find_pipeline(repository: Repository, name: str, directory: Path | None) -> Pipeline:
    """The pipeline or model of that name, a model in its latest version. Without a directory, the only model.

    Raises ModelNotFound.
    """
    if directory is None:
        (entry,) = repository.models.values()
        return single_model(entry.spec)
    for pipeline in repository.pipelines.values():
        if name in (pipeline.name, pipeline_key(pipeline)):
            return pipeline
    versions = [entry.spec for key, entry in repository.models.items() if name in (key, entry.spec.name)]
    if versions:
        return single_model(max(versions, key=lambda spec: spec.version))
    reasons = "".join(f"\n  {each.reason}" for each in repository.broken if each.name == name.partition(":")[0])
    there = ", ".join([*repository.pipelines, *repository.models]) or "none"
    raise ModelNotFound(f"{directory}: no pipeline or model '{name}'; there are {there}{reasons}")


def objective_ms(given: float | None, pipeline: Pipeline, config: ServerConfig, assumptions: list[str]) -> float:
    """The latency objective: the given one, else that of the pipeline, else the server's default; a day at most."""
    slo_ms = _requested_slo_ms(given, pipeline, config, assumptions)
    if slo_ms > MAX_SLO_MS:
        assumptions.append(f"an objective of {MAX_SLO_MS:.0f} ms (a day), the longest that is planned for")
        return MAX_SLO_MS
    return slo_ms


def _requested_slo_ms(given: float | None, pipeline: Pipeline, config: ServerConfig, assumptions: list[str]) -> float:
    if given is not None:
        return given
    if pipeline.slo_ms is not None:
        assumptions.append(f"the pipeline's objective, {pipeline.slo_ms:g} ms")
        return pipeline.slo_ms
    assumptions.append(f"the server's default objective, {config.default_slo_ms:g} ms")
    return config.default_slo_ms


def stage_probabilities(
    pipeline: Pipeline, given: list[tuple[str, float]], assumptions: list[str]
) -> tuple[float, ...]:
    """The share of the offered rows that each stage runs. Raises ConfigError for an unknown stage."""
    conditional = [stage.name for stage in pipeline.stages if stage.when is not None]
    shares = dict(given)
    if unknown := [name for name in shares if name not in conditional]:
        there = ", ".join(conditional) or "none"
        raise ConfigError(f"--escalation: {unknown[0]} is not a conditional stage (`when`); expected one of {there}")
    for name in conditional:
        if name not in shares:
            shares[name] = ESCALATION
            assumptions.append(f"{ESCALATION:.0%} of the rows offered to stage '{name}' run (--escalation {name}=P)")
    return tuple(shares.get(stage.name, 1.0) for stage in pipeline.stages)


def planned_spec(
    config: ServerConfig,
    models: list[ModelEntry],
    pipeline: Pipeline,
    partitions: tuple[Partition, ...],
    assumptions: list[str],
) -> SchedulerSpec:
    """The scheduler's spec as a server with this configuration builds it, with this pipeline only.

    Raises ConfigError as a server does, for example for a stage that is to compete on more partitions than there are.
    """
    specs = [entry.spec for entry in models]
    configs = [partition_config(config, each) for each in partitions]
    spec = build_spec(
        specs,
        config.with_defaults([pipeline]),
        configs,
        limits=config.limits.config(),
        policies=config.policies(specs),
        instances=config.instance_configs(specs),
        default_policy=config.policy.config(),
        memory_of=_memory(models, configs, assumptions) if any(each.memory_bytes for each in configs) else None,
    )
    check_competition(spec.pipelines, spec.partitions)
    return spec


def _memory(models: list[ModelEntry], partitions: list[PartitionConfig], assumptions: list[str]) -> dict[str, int]:
    """The memory of each model in bytes, as a server determines it."""
    memory: dict[str, int] = {}
    for model in models:
        found = look_up(model, {partition.kind for partition in partitions})
        memory[model.spec.key] = model_memory(
            model, {kind: entry for kind, entry in found.items() if isinstance(entry, ProfileEntry)}
        )
        assumptions.append(
            f"{model.spec.key} takes {memory[model.spec.key] / _MIB:.3g} MiB on each partition that holds it"
        )
    return memory
