"""The command `sluice plan`: what a pipeline would take and cost, without serving it."""

import argparse
import math
import sys
from pathlib import Path

import msgspec

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.settings.spec_builder import build_spec, pipeline_key
from sluice.gateway.cli.text.plan_report import report
from sluice.gateway.config.configured_partitions import configured_partitions, partition_config
from sluice.gateway.config.server_config import ServerConfig, read_config
from sluice.gateway.deployment.read import read_models
from sluice.gateway.deployment.stored_profiles import look_up, model_memory
from sluice.gateway.what_if.latency_tables import latency_tables, planned_partitions
from sluice.gateway.what_if.planning import PLANNERS, WhatIf
from sluice.gateway.what_if.question import Question, answer
from sluice.models.errors import ConfigError, ModelNotFound
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.file import ProfileEntry
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.models.slo import MAX_SLO_MS
from sluice.models.units import ms_to_ns
from sluice.mps.partitions.partition import Partition

INFEASIBLE = 1
"""Exit status when no configuration keeps to the objective."""
ESCALATION = 0.5
"""Share of rows that a stage with a condition is assumed to run for."""

_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_plan)
    add = parser.add_argument
    add("pipeline", metavar="PIPELINE", help="a pipeline, family or model (NAME or NAME:VERSION), or a model file")
    add("--repository", type=Path, metavar="DIR", help="the model repository; without it PIPELINE is a model file")
    add("--config", type=Path, metavar="FILE", help="the server's settings: partitions, prices, policies, limits")
    add("--partitions", metavar="N|KIND,KIND", help="as many equal sets of cores, or kinds such as cpu1,mig-1g,mps-20")
    add("--slo-ms", type=float, metavar="MS", help="the objective (default: the pipeline's, else the server's default)")
    add("--rate", type=float, default=0.0, metavar="R", help="requests of one row a second (default: lone requests)")
    escalation = "share of the rows offered to a stage with a condition that it runs for (default 0.5)"
    add("--escalation", type=_escalation, action="append", default=[], metavar="STAGE=P", help=escalation)
    percentile = "a stage that at most 100 - P %% of the rows reach takes no time (default 99)"
    add("--percentile", type=float, default=99.0, metavar="P", help=percentile)
    add("--planner", choices=PLANNERS, default="exact", help="whose plan (default exact)")
    add("--seed", type=int, default=0, help="of planners that draw at random (default 0)")
    add("--json", action="store_true", help="all figures, for programs")
    add("--explain", action="store_true", help="print the arithmetic as well")


def _escalation(text: str) -> tuple[str, float]:
    stage, _, share = text.partition("=")
    try:
        if stage and 0 <= float(share) <= 1:
            return stage, float(share)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected STAGE=P with P from 0 to 1, got '{text}'")


def _plan(options: argparse.Namespace) -> int:
    config = ServerConfig() if options.config is None else read_config(options.config)
    _check(options)
    repository = _repository(options.repository, options.pipeline, config)
    pipeline = _pipeline(repository, options.pipeline, options.repository)
    assumptions: list[str] = []
    slo_ms = _slo_ms(options.slo_ms, pipeline, config, assumptions)
    if slo_ms > MAX_SLO_MS:
        assumptions.append(f"an objective of {MAX_SLO_MS:.0f} ms, a day: a longer one counts as that")
        slo_ms = MAX_SLO_MS
    if not options.rate:
        assumptions.append("lone requests (--rate 0)")
    probabilities = _probabilities(pipeline, options.escalation, assumptions)
    text = options.partitions
    partitions = configured_partitions(config) if text is None else planned_partitions(text)
    models = [repository.models[key] for key in dict.fromkeys(key for each in pipeline.stages for key in each.models)]
    if text is None and config.triton:
        assumptions.append(f"Triton servers are left out: {', '.join(server.name for server in config.triton)}")
    tables, used = latency_tables(models, partitions, options.repository, _tell)
    spec = _spec(config, models, pipeline, partitions, assumptions)
    what_if = WhatIf(spec, tables, {pipeline_key(pipeline): probabilities}, options.percentile / 100)
    question = Question(ms_to_ns(slo_ms), options.rate, options.planner, options.seed, tuple(assumptions), tuple(used))
    found = answer(what_if, question)
    print(msgspec.json.encode(found).decode() if options.json else report(found, explain=options.explain))
    return 0 if found.feasible else INFEASIBLE


def _check(options: argparse.Namespace) -> None:
    if options.slo_ms is not None and not 0 < options.slo_ms < math.inf:
        raise ConfigError(f"--slo-ms: expected milliseconds above 0, got {options.slo_ms:g}")
    if not 0 <= options.rate < math.inf:
        raise ConfigError(f"--rate: expected requests a second of at least 0, got {options.rate:g}")
    if not 0 < options.percentile <= 100:
        raise ConfigError(f"--percentile: expected a percentile above 0, up to 100, got {options.percentile:g}")
    if options.seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {options.seed}")


def _tell(progress: str) -> None:
    print(f"sluice: {progress}", file=sys.stderr, flush=True)


def _repository(directory: Path | None, name: str, config: ServerConfig) -> Repository:
    if directory is not None:
        return read_models([directory], [], config)
    found = read_models([], [Path(name)], config)
    for broken in found.broken:
        raise ConfigError(f"{broken.reason}; a pipeline or model of a repository needs --repository DIR")
    return found


def _pipeline(repository: Repository, name: str, directory: Path | None) -> Pipeline:
    """The pipeline of that name, or a model by itself: the latest of its versions."""
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


def _slo_ms(given: float | None, pipeline: Pipeline, config: ServerConfig, assumptions: list[str]) -> float:
    if given is not None:
        return given
    if pipeline.slo_ms is not None:
        assumptions.append(f"the pipeline's objective, {pipeline.slo_ms:g} ms")
        return pipeline.slo_ms
    assumptions.append(f"the server's default objective, {config.default_slo_ms:g} ms")
    return config.default_slo_ms


def _probabilities(pipeline: Pipeline, given: list[tuple[str, float]], assumptions: list[str]) -> tuple[float, ...]:
    """For each stage the share of the rows offered to it that it runs."""
    conditional = [stage.name for stage in pipeline.stages if stage.when is not None]
    shares = dict(given)
    if unknown := [name for name in shares if name not in conditional]:
        there = ", ".join(conditional) or "none"
        raise ConfigError(f"--escalation: {unknown[0]} is no stage with a condition (`when`); there are {there}")
    for name in conditional:
        if name not in shares:
            shares[name] = ESCALATION
            assumptions.append(f"{ESCALATION:.0%} of the rows offered to stage '{name}' run (--escalation {name}=P)")
    return tuple(shares.get(stage.name, 1.0) for stage in pipeline.stages)


def _spec(
    config: ServerConfig,
    models: list[ModelEntry],
    pipeline: Pipeline,
    partitions: tuple[Partition, ...],
    assumptions: list[str],
) -> SchedulerSpec:
    """As the server's, with this pipeline alone."""
    specs = [entry.spec for entry in models]
    configs = [partition_config(config, each) for each in partitions]
    return build_spec(
        specs,
        [pipeline],
        configs,
        limits=config.limits.config(),
        policies=config.policies(specs),
        default_policy=config.policy.config(),
        memory_of=_memory(models, configs, assumptions) if any(each.memory_bytes for each in configs) else None,
    )


def _memory(models: list[ModelEntry], partitions: list[PartitionConfig], assumptions: list[str]) -> dict[str, int]:
    """The bytes that each model takes, as the server finds them."""
    memory: dict[str, int] = {}
    for model in models:
        found = look_up(model, {partition.kind for partition in partitions})
        memory[model.spec.key] = model_memory(
            model, {kind: entry for kind, entry in found.items() if isinstance(entry, ProfileEntry)}
        )
        assumptions.append(f"{model.spec.key} takes {memory[model.spec.key] / _MIB:.3g} MiB where it is held")
    return memory
