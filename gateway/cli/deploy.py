"""`sluice deploy`: measures, plans and serves what a file names, at its rate and within its objective."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sluice.gateway.cli import profile
from sluice.gateway.cli.text.plan_report import report
from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.contradictions import contradictions
from sluice.gateway.config.server_config import read_config
from sluice.gateway.deployment.read import read_models
from sluice.gateway.deployment.stored_profiles import look_up, shortfall
from sluice.gateway.partitions.mps_daemons import mps_daemons
from sluice.gateway.what_if.deploy_file import DeployFile, PipelineLoad, read_deploy_file
from sluice.gateway.what_if.divisions import Division, choose, core_divisions, plan_all
from sluice.gateway.what_if.pipeline_plan import PlanInput, Planning
from sluice.gateway.what_if.planned_pipeline import find_pipeline
from sluice.models.errors import ConfigError, ModelNotFound
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.file import FigureSource, ProfileEntry
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.partition import MpsPartition, Partition

INFEASIBLE = 1
"""Exit status when no plan meets the objective at the rate."""

_MARK = "# Written by sluice deploy"
"""The beginning of files of settings that may be written again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_deploy)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="repository, objective and rate, in YAML")
    add("--settings", type=Path, metavar="FILE", help="where to write the settings (default: FILE.settings.yaml)")
    add("--dry-run", action="store_true", help="measure, plan and write the settings, and do not serve")


def _deploy(options: argparse.Namespace) -> int:
    file = read_deploy_file(options.file)
    settings: Path = options.settings or options.file.with_suffix(".settings.yaml")
    _check_free(settings, options.file)
    repository = read_models([file.repository], [], file.config)
    for broken in repository.broken:
        print(f"sluice: not served: {broken.reason}", file=sys.stderr)
    pipelines = _pipelines(file, repository, options.file)
    loads = {each.name: _load(file, each) for each in pipelines}
    if file.chooses_partitions:
        divisions = core_divisions(_most_copies(pipelines))
    else:
        divisions = [configured_partitions(file.config)]
        check_partitions(divisions[0])
    plannings = [Planning(file.config, repository, file.repository, each, _announce) for each in divisions]
    models = {entry.spec.key: entry for each in pipelines for entry in plannings[0].models(each)}
    if status := _measure(file, list(models.values()), divisions):
        return status
    planned = [plan_all(planning, loads, pipelines) for planning in plannings]
    chosen = choose(planned)
    _print_plans(file, planned, chosen)
    if not chosen.is_feasible:
        for reason in chosen.reasons():
            print(f"sluice: {reason}", file=sys.stderr)
        return INFEASIBLE
    _write(settings, options.file, file, chosen)
    command = ["serve", "--config", str(settings)]
    to_serve = "to serve" if options.dry_run else "serving"
    print(f"wrote {settings}; {to_serve}: sluice {shlex.join(command)}", flush=True)
    return 0 if options.dry_run else _serve(command)


def _serve(command: list[str]) -> NoReturn:
    """Become the server."""
    sys.stderr.flush()
    # A server handles signals and children from its first moment, which a process that has done other work does not.
    os.execv(sys.executable, [sys.executable, "-m", "sluice.gateway.cli.main", *command])


def _announce(sentence: str) -> None:
    print(f"sluice: {sentence}", file=sys.stderr, flush=True)


def _pipelines(file: DeployFile, repository: Repository, path: Path) -> list[Pipeline]:
    """The named pipelines and models, else all pipelines, else all models."""
    names = list(file.pipelines) or [each.name for each in repository.pipelines.values()]
    names = names or list(dict.fromkeys(entry.spec.name for entry in repository.models.values()))
    if not names:
        raise ConfigError(f"{file.repository}: no pipelines or models; expected NAME/VERSION/model.onnx")
    try:
        return [find_pipeline(repository, name, file.repository) for name in names]
    except ModelNotFound as error:
        raise ConfigError(f"{path}: pipelines: {error}") from error


def _most_copies(pipelines: list[Pipeline]) -> int:
    """The partitions that the stage with the most competing copies needs."""
    stages = (stage for each in pipelines for stage in each.stages)
    return max([stage.compete.copies for stage in stages if stage.compete is not None], default=1)


def _load(file: DeployFile, pipeline: Pipeline) -> PlanInput:
    load = file.pipelines.get(pipeline.name, PipelineLoad())
    rate = file.rate if load.rate is None else load.rate
    slo_ms = file.objective_ms if pipeline.slo_ms is None else None
    return PlanInput(rate, slo_ms, tuple(load.escalation.items()))


def _measure(file: DeployFile, models: list[ModelEntry], divisions: list[tuple[Partition, ...]]) -> int:
    """Measure models on the kinds of partitions that they have no profile for; returns the exit status."""
    kinds = {each.profile_kind: each for division in divisions for each in division}
    found = {entry.spec.key: look_up(entry, kinds) for entry in models}
    missing = [
        (entry, kind) for entry in models for kind, stored in found[entry.spec.key].items() if _lacks(entry, stored)
    ]
    if not missing:
        return 0
    sharing = [each for division in divisions for each in division if isinstance(each, MpsPartition)]
    with mps_daemons(sharing, adopted=_announce):
        return profile.each_model(
            (entry, partial(profile.measure_model, entry, kinds[kind], None, file.config.strict))
            for entry, kind in missing
        )


def _lacks(entry: ModelEntry, found: ProfileEntry | Exception) -> bool:
    """True for a profile that a server would not use."""
    if isinstance(found, Exception):
        return True
    return found.source is not FigureSource.MEASURED or bool(shortfall(entry, found))


def _print_plans(file: DeployFile, planned: list[Division], chosen: Division) -> None:
    for plan in chosen.plans.values():
        print(f"{report(plan)}\n")
    for each in planned if file.chooses_partitions else ():
        verdict = f"{each.cost_per_s * 3600:.4g} an hour" if each.is_feasible else "does not fit"
        mark = "  <- chosen" if each is chosen and each.is_feasible else ""
        print(f"{_partitions_in_words(each.partitions)}: {verdict}, busy {each.busy:.1%} of the time{mark}")


def _partitions_in_words(partitions: tuple[Partition, ...]) -> str:
    return f"{len(partitions)} x {partitions[0].profile_kind}"


def _check_free(settings: Path, path: Path) -> None:
    """Raise ConfigError for a file of settings that somebody else has written."""
    try:
        with settings.open(encoding="utf-8", errors="replace") as opened:
            if opened.readline().startswith(_MARK):
                return
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{settings}: cannot be read: {error.strerror}") from error
    raise ConfigError(f"{settings}: not written by sluice deploy, so it is not replaced; expected another --settings")


def _write(settings: Path, path: Path, file: DeployFile, chosen: Division) -> None:
    """Write the settings, and read them again as the server does. Raises ConfigError."""
    document: Mapping[str, Any] = file.document
    if file.chooses_partitions:
        document = {**document, "partitions": len(chosen.partitions)}
    lines = [f"{_MARK} from {path}; the next run replaces it."]
    for name, plan in chosen.plans.items():
        highest = "" if plan.highest_rate is None else f", highest rate {plan.highest_rate:.4g}/s"
        lines.append(
            f"# {name} at {plan.rate:g} requests/s: p99 {plan.plan.p99_ms:.3f} of {plan.slo_ms:g} ms, "
            f"{plan.plan.cost_per_1000:.4g} per 1000 requests{highest}"
        )
    text = "\n".join([*lines, yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)])
    scratch = settings.with_name(f".{settings.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(settings)
    except OSError as error:
        raise ConfigError(f"{settings}: cannot be written: {error.strerror}") from error
    for warning in contradictions(read_config(settings)):
        print(f"sluice: {settings}: warning: {warning.place}: {warning.text}", file=sys.stderr)
