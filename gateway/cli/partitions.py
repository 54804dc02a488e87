"""`sluice partitions`: lists the partitions of this machine, and brings GPUs into the layout that a file describes."""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sluice.gateway.cli.pack import add_pack_arguments, pack
from sluice.gateway.cli.resize import add_resize_arguments, resize
from sluice.gateway.cli.text.partition_plans import plans_elsewhere, plans_here
from sluice.gateway.cli.text.partition_report import gpu_lines, mps_lines, partition_lines, plan_lines
from sluice.models.errors import ConfigError, ControlFailed, ServingError
from sluice.mps.daemon.inventory import running_daemons
from sluice.mps.mig.apply import apply_plan
from sluice.mps.mig.desired import GpuPlan
from sluice.mps.mig.layout_file import LayoutFile, decode_layouts
from sluice.mps.nvidia.nvml import Nvml, open_nvml

OTHERWISE = 1
"""Exit status when GPUs are not as the file wants them, or cannot become so as long as they are in use."""
EVERY_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command can do."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = _action(actions, "list", _list, "core sets, GPUs with their MIG instances, and MPS daemons")
    listing.add_argument("--config", type=Path, metavar="FILE", help="the server's settings, for its core sets")
    plan = _action(actions, "plan", _plan, "tell the steps to the layout of a file; changes nothing")
    plan.add_argument("file", type=Path, metavar="FILE", help="the layout that is wanted, in YAML")
    plan.add_argument("--present", type=Path, metavar="FILE", help="the layout to start from, instead of this machine")
    apply = _action(actions, "apply", _apply, "do these steps")
    apply.add_argument("file", type=Path, metavar="FILE", help="the layout that is wanted, in YAML")
    add_pack_arguments(_action(actions, "pack", pack, "tell which models lie together on devices, by their memory"))
    add_resize_arguments(_action(actions, "resize", resize, "give one of a running server another share, as it serves"))
    assertion = _action(actions, "assert", _assert, "exit with 0 if GPUs are as the file wants them, else with 1")
    assertion.add_argument("file", type=Path, metavar="FILE", help="the layout that is wanted, in YAML")
    watch = _action(actions, "watch", _watch, "tell whenever GPUs leave the layout of a file, and put it right")
    watch.add_argument("file", type=Path, metavar="FILE", help="the layout that is wanted, in YAML")
    watch.add_argument("--every", type=float, default=EVERY_S, metavar="S", help="seconds between looks (default 10)")
    for action in (apply, watch):
        action.add_argument("--allow-mig", action="store_true", help="change MIG modes and instances")


def _action(actions: Any, name: str, command: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help)
    parser.set_defaults(command=command)
    return parser


def _list(options: argparse.Namespace) -> int:
    from sluice.gateway.config.configured_partitions import configured_partitions
    from sluice.gateway.config.server_config import ServerConfig, read_config

    config = ServerConfig() if options.config is None else read_config(options.config)
    _print(partition_lines(configured_partitions(config)))
    try:
        with open_nvml() as nvml:
            for gpu in nvml.gpus():
                _print(gpu_lines(gpu))
    except ControlFailed as error:
        print(f"no GPUs: {error}")
    for daemon in running_daemons():
        _print(mps_lines(daemon))
    return 0


def _plan(options: argparse.Namespace) -> int:
    file = _read(options.file)
    if options.present is not None:
        return _tell(file, plans_elsewhere(file, _read(options.present)))
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(open_nvml())
        except ControlFailed as error:
            if any(gpu.gpu is None for gpu in file.gpus):
                raise ConfigError(f"{error}; give `gpu` in {options.file} to plan for one that is not here") from error
            print(f"{error}: planned for GPUs without instances")
        else:
            return _tell(file, plans_here(file, nvml.gpus()))
    return _tell(file, plans_elsewhere(file))


def _apply(options: argparse.Namespace) -> int:
    file = _read(options.file)
    with open_nvml() as nvml:
        plans = plans_here(file, nvml.gpus())
        status = _tell(file, plans)
        changes = any(plan.steps for _, plan in plans)
        if status or not changes:
            return status
        if not options.allow_mig:
            raise ConfigError("nothing is changed without --allow-mig")
        for gpu, plan in plans:
            apply_plan(nvml, gpu, plan, _done)
    return 0


def _assert(options: argparse.Namespace) -> int:
    file = _read(options.file)
    with open_nvml() as nvml:
        return OTHERWISE if _print(_drift(file, nvml)) else 0


def _watch(options: argparse.Namespace) -> int:
    file = _read(options.file)
    if not 1 <= options.every <= 86_400:
        raise ConfigError(f"--every: expected 1 to 86400 seconds, got {options.every:g}")
    before: list[str] | None = None
    refused: list[str] = []
    with open_nvml() as nvml, _until_interrupted():
        while True:
            found = _look(file, nvml)
            if found != before:
                _print(found or [f"all as in {file.path}"])
            reasons: list[str] = []
            if found and options.allow_mig:
                reasons = [reason for reason in _put_right(file, nvml) if reason not in found]
                if reasons != refused:
                    _print(reasons)
                found = _look(file, nvml)
            before, refused = found, reasons
            time.sleep(options.every)
    return 0


def _look(file: LayoutFile, nvml: Nvml) -> list[str]:
    """What is not as it should be; trouble of the moment ends no watch."""
    try:
        return _drift(file, nvml)
    except ServingError as error:
        return [str(error)]


def _put_right(file: LayoutFile, nvml: Nvml) -> list[str]:
    """Why GPUs could not be brought into the layout of the file; the others are."""
    reasons: list[str] = []
    try:
        plans = plans_here(file, nvml.gpus())
    except ServingError as error:
        return [str(error)]
    for gpu, plan in plans:
        try:
            apply_plan(nvml, gpu, plan, _done)
        except ServingError as error:
            reasons.append(str(error))
    return reasons


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print()


def _drift(file: LayoutFile, nvml: Nvml) -> list[str]:
    """A line for each GPU that is not as the file wants it."""
    return [
        f"GPU {gpu.device} is not as in {file.path}: {'; '.join(map(str, plan.steps))}"
        for gpu, (_, plan) in zip(file.gpus, plans_here(file, nvml.gpus()), strict=True)
        if plan.steps
    ]


def _read(path: Path) -> LayoutFile:
    try:
        return decode_layouts(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _tell(file: LayoutFile, plans: list[tuple[str, GpuPlan]]) -> int:
    for gpu, (_, plan) in zip(file.gpus, plans, strict=True):
        _print(plan_lines(gpu.device, plan))
    return OTHERWISE if any(plan.refusals for _, plan in plans) else 0


def _done(text: str) -> None:
    print(f"done: {text}", flush=True)


def _print(lines: list[str]) -> bool:
    for line in lines:
        print(line, flush=True)
    return bool(lines)
