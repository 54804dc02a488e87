"""`sluice partitions`: lists the partitions of this machine and brings GPUs into the layout of a file."""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sluice.gateway.cli.client.http import ServerAddress
from sluice.gateway.cli.client.partitions import server_partitions
from sluice.gateway.cli.pack import add_pack_arguments, pack
from sluice.gateway.cli.resize import add_resize_arguments, resize
from sluice.gateway.cli.text.partition_report import (
    gpu_lines,
    mps_lines,
    partition_lines,
    plan_lines,
    remote_lines,
    status_rows,
)
from sluice.models.command_line import add_connection_options
from sluice.models.errors import ConfigError, ControlFailed, ServingError
from sluice.models.text_table import print_table
from sluice.mps.daemon.inventory import running_daemons
from sluice.mps.mig.apply import apply_plan
from sluice.mps.mig.desired import GpuPlan
from sluice.mps.mig.file_plans import plan_described_gpus, plan_present_gpus
from sluice.mps.mig.layout_file import LayoutFile, decode_layouts
from sluice.mps.nvidia.nvml import Nvml, open_nvml

DIFFERENT = 1
"""Exit status when GPUs differ from the file, or cannot be changed while they are in use."""
EVERY_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = _action(actions, "list", _list, "list core sets, remote slots, GPUs with MIG instances, and MPS daemons")
    listing.add_argument("--config", type=Path, metavar="FILE", help="settings of the server, for its partitions")
    listing.add_argument("--url", help="URL of a running server; its partitions are listed, with their nodes")
    add_connection_options(listing)
    plan = _action(actions, "plan", _plan, "print the steps to the layout of a file, changing nothing")
    plan.add_argument("file", type=Path, metavar="FILE", help="the wanted layout, in YAML")
    plan.add_argument(
        "--present", type=Path, metavar="FILE", help="the layout to start from, instead of this machine's"
    )
    apply = _action(actions, "apply", _apply, "apply the plan")
    apply.add_argument("file", type=Path, metavar="FILE", help="the wanted layout, in YAML")
    add_pack_arguments(_action(actions, "pack", pack, "print which models share a device, by their memory"))
    add_resize_arguments(_action(actions, "resize", resize, "change the share of a partition of a running server"))
    assertion = _action(actions, "assert", _assert, "exit with 0 if the GPUs have the layout of a file, else with 1")
    assertion.add_argument("file", type=Path, metavar="FILE", help="the wanted layout, in YAML")
    watch = _action(actions, "watch", _watch, "report when GPUs leave the layout of a file, and restore it")
    watch.add_argument("file", type=Path, metavar="FILE", help="the wanted layout, in YAML")
    watch.add_argument("--every", type=float, default=EVERY_S, metavar="S", help="seconds between checks (default 10)")
    for action in (apply, watch):
        action.add_argument("--allow-mig", action="store_true", help="allow changes of MIG modes and instances")


def _action(actions: Any, name: str, command: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help)
    parser.set_defaults(command=command)
    return parser


def _list(options: argparse.Namespace) -> int:
    from sluice.gateway.config.configured_partitions import configured_partitions
    from sluice.gateway.config.server_config import ServerConfig, read_config

    if options.url is not None:
        print_table(status_rows(server_partitions(ServerAddress.of(options))), left=6)
        return 0
    config = ServerConfig() if options.config is None else read_config(options.config)
    _print(partition_lines(configured_partitions(config)))
    _print(remote_lines(config.remote_classes))
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
        return _print_plans(file, plan_described_gpus(file, _read(options.present)))
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(open_nvml())
        except ControlFailed as error:
            if any(gpu.gpu is None for gpu in file.gpus):
                raise ConfigError(f"{error}; set `gpu` in {options.file} to plan for a GPU that is not here") from error
            print(f"{error}: the plan starts from GPUs without instances")
        else:
            return _print_plans(file, plan_present_gpus(file, nvml.gpus()))
    return _print_plans(file, plan_described_gpus(file))


def _apply(options: argparse.Namespace) -> int:
    file = _read(options.file)
    with open_nvml() as nvml:
        plans = plan_present_gpus(file, nvml.gpus())
        status = _print_plans(file, plans)
        changes = any(plan.steps for _, plan in plans)
        if status or not changes:
            return status
        if not options.allow_mig:
            raise ConfigError("changes need --allow-mig")
        for gpu, plan in plans:
            apply_plan(nvml, gpu, plan, _done)
    return 0


def _assert(options: argparse.Namespace) -> int:
    file = _read(options.file)
    with open_nvml() as nvml:
        return DIFFERENT if _print(_drift(file, nvml)) else 0


def _watch(options: argparse.Namespace) -> int:
    file = _read(options.file)
    if not 1 <= options.every <= 86_400:
        raise ConfigError(f"--every: expected 1 to 86400 seconds, got {options.every:g}")
    before: list[str] | None = None
    refused: list[str] = []
    with open_nvml() as nvml, _until_interrupted():
        while True:
            found = _differences(file, nvml)
            if found != before:
                _print(found or [f"all GPUs are as in {file.path}"])
            reasons: list[str] = []
            if found and options.allow_mig:
                reasons = [reason for reason in _restore(file, nvml) if reason not in found]
                if reasons != refused:
                    _print(reasons)
                found = _differences(file, nvml)
            before, refused = found, reasons
            time.sleep(options.every)
    return 0


def _differences(file: LayoutFile, nvml: Nvml) -> list[str]:
    """The differences from the file; a temporary error is reported and does not end the watch."""
    try:
        return _drift(file, nvml)
    except ServingError as error:
        return [str(error)]


def _restore(file: LayoutFile, nvml: Nvml) -> list[str]:
    """Bring the GPUs into the layout of the file; returns why some could not be."""
    reasons: list[str] = []
    try:
        plans = plan_present_gpus(file, nvml.gpus())
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
    """A line for each GPU that differs from the file."""
    return [
        f"GPU {gpu.device} is not as in {file.path}: {'; '.join(map(str, plan.steps))}"
        for gpu, (_, plan) in zip(file.gpus, plan_present_gpus(file, nvml.gpus()), strict=True)
        if plan.steps
    ]


def _read(path: Path) -> LayoutFile:
    try:
        return decode_layouts(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _print_plans(file: LayoutFile, plans: list[tuple[str, GpuPlan]]) -> int:
    for gpu, (_, plan) in zip(file.gpus, plans, strict=True):
        _print(plan_lines(gpu.device, plan))
    return DIFFERENT if any(plan.refusals for _, plan in plans) else 0


def _done(text: str) -> None:
    print(f"done: {text}", flush=True)


def _print(lines: list[str]) -> bool:
    for line in lines:
        print(line, flush=True)
    return bool(lines)
