"""`sluice plan`: finds the cheapest configuration of a pipeline that meets an objective, without serving it."""

import argparse
import math
import sys
from pathlib import Path

import msgspec

from sluice.batcher.planner.registry import DEFAULT, path_planners, planner_named
from sluice.gateway.cli.local_path import local_path
from sluice.gateway.cli.text.plan_report import report
from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.server_config import ServerConfig, read_config
from sluice.gateway.deployment.read import read_models
from sluice.gateway.what_if.latency_tables import planned_partitions, remote_partitions
from sluice.gateway.what_if.pipeline_plan import PERCENTILE, PlanInput, Planning
from sluice.gateway.what_if.planned_pipeline import find_pipeline
from sluice.models.errors import ConfigError
from sluice.models.repository.scan import Repository

INFEASIBLE = 1
"""Exit status when no configuration meets the objective."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_plan)
    add = parser.add_argument
    add("pipeline", metavar="PIPELINE", help="a pipeline, family or model (NAME or NAME:VERSION), or a model file")
    add("--repository", type=local_path, metavar="DIR", help="the repository; without it, PIPELINE is a model file")
    add("--config", type=Path, metavar="FILE", help="settings of the server: partitions, prices, policies, limits")
    add("--partitions", metavar="N|KIND,KIND", help="a number of equal core sets, or kinds such as cpu1,mig-1g,mps-20")
    add(
        "--slo-ms", type=float, metavar="MS", help="the latency objective (default: that of the pipeline or the server)"
    )
    add("--rate", type=float, default=0.0, metavar="R", help="requests of one row per second (default: lone requests)")
    escalation = "share of the offered rows that a conditional stage runs (default 0.5, repeatable)"
    add("--escalation", type=_escalation, action="append", default=[], metavar="STAGE=P", help=escalation)
    percentile = "leave out stages that at most 100 - P %% of the rows reach (default 99)"
    add("--percentile", type=float, default=PERCENTILE, metavar="P", help=percentile)
    planners = path_planners()
    described = "; ".join(f"{each.name}: {each.description}" for each in planners.values())
    add(
        "--planner",
        choices=list(planners),
        default=DEFAULT,
        help=f"planning algorithm (default {DEFAULT}): {described}",
    )
    setting = "a setting of the planner (repeatable)"
    add("--planner-setting", type=_setting, action="append", default=[], metavar="KEY=VALUE", help=setting)
    add("--seed", type=int, help="the setting `seed` of randomized planners (default 0)")
    add("--json", action="store_true", help="print all figures as JSON")
    add("--explain", action="store_true", help="also print the arithmetic")


def _escalation(text: str) -> tuple[str, float]:
    stage, _, share = text.partition("=")
    try:
        if stage and 0 <= float(share) <= 1:
            return stage, float(share)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected STAGE=P with P from 0 to 1, got '{text}'")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got '{text}'")
    return key, value


def _planner_settings(options: argparse.Namespace) -> dict[str, object]:
    """The given settings, with the seed; ConfigError for one that the planner does not have."""
    settings: dict[str, object] = dict(options.planner_setting)
    if options.seed is not None:
        if "seed" not in path_planners()[options.planner].settings.__struct_fields__:
            raise ConfigError(f"--seed: planner {options.planner} has no setting seed")
        settings = {"seed": options.seed} | settings
    planner_named(options.planner, settings)
    return settings


def _plan(options: argparse.Namespace) -> int:
    config = ServerConfig() if options.config is None else read_config(options.config)
    _check(options)
    settings = _planner_settings(options)
    text = options.partitions
    if text is None:
        partitions = (*configured_partitions(config), *remote_partitions(config))
    else:
        partitions = planned_partitions(text)
    repository = _repository(options.repository, options.pipeline, config)
    pipeline = find_pipeline(repository, options.pipeline, options.repository)
    note = ""
    if text is None and config.triton:
        note = f"Triton servers are left out: {', '.join(server.name for server in config.triton)}"
    load = PlanInput(options.rate, options.slo_ms, options.escalation, options.percentile, options.planner, settings)
    planning = Planning(config, repository, options.repository, partitions, _print_progress)
    found = planning.plan(pipeline, load, note)
    print(msgspec.json.encode(found).decode() if options.json else report(found, explain=options.explain))
    return 0 if found.feasible else INFEASIBLE


def _check(options: argparse.Namespace) -> None:
    if options.slo_ms is not None and not 0 < options.slo_ms < math.inf:
        raise ConfigError(f"--slo-ms: expected milliseconds above 0, got {options.slo_ms:g}")
    if not 0 <= options.rate < math.inf:
        raise ConfigError(f"--rate: expected requests per second of at least 0, got {options.rate:g}")
    if not 0 < options.percentile <= 100:
        raise ConfigError(f"--percentile: expected a percentile above 0, up to 100, got {options.percentile:g}")
    if options.seed is not None and options.seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {options.seed}")


def _print_progress(progress: str) -> None:
    print(f"sluice: {progress}", file=sys.stderr, flush=True)


def _repository(directory: Path | None, name: str, config: ServerConfig) -> Repository:
    if directory is not None:
        return read_models([directory], [], config)
    found = read_models([], [Path(name)], config)
    for broken in found.broken:
        raise ConfigError(f"{broken.reason}; for a pipeline or model of a repository add --repository DIR")
    return found
