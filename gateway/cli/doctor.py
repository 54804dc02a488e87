"""`sluice doctor`: checks this machine for everything a server needs."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sluice.batcher.planner.registry import path_planners
from sluice.batcher.policies.registry import batch_policies
from sluice.gateway.cli.checks import cluster as cluster_checks
from sluice.gateway.cli.checks.machine import run_checks
from sluice.gateway.cli.client.http import ServerAddress
from sluice.gateway.cli.client.partitions import server_partitions
from sluice.gateway.config.server_config import ServerConfig, read_config
from sluice.gateway.deployment.read import read_models
from sluice.gateway.partitions.inventory import Enforcement, RemoteSlot
from sluice.gateway.server.limits import Finding, Severity
from sluice.gateway.server.wiring import initial_model_bytes
from sluice.models.command_line import add_connection_options
from sluice.models.errors import ServingError
from sluice.models.text_table import print_table

WRONG = 1
"""Exit status when a check fails."""

_SEVERITIES = {
    Enforcement.ENFORCED: Severity.OK,
    Enforcement.UNENFORCED: Severity.WRONG,
    Enforcement.UNKNOWN: Severity.NOTE,
}

_STYLES = {Severity.OK.value: "green", Severity.NOTE.value: "yellow", Severity.WRONG.value: "bold red"}
"""Colours of severities on a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_doctor)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the server, for its partitions")
    parser.add_argument("--url", help="URL of a running server; its partitions are reported and none is tried out")
    add_connection_options(parser)
    cluster_checks.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")


def _doctor(options: argparse.Namespace) -> int:
    batch_policies()
    path_planners()
    config = ServerConfig() if options.config is None else read_config(options.config)
    if options.cluster or options.workers is not None:
        findings = list(cluster_checks.cluster_findings(options, config))
    else:
        findings = list(run_checks(config, _model_bytes(config), with_layout=options.url is None))
    if options.url is not None:
        findings += partition_findings(ServerAddress.of(options))
    wrong = any(each.severity is Severity.WRONG for each in findings)
    if options.json:
        print(msgspec.json.encode({"ok": not wrong, "findings": findings}).decode())
    else:
        rows = [(each.severity.value, each.part, each.text) for each in findings]
        print_table(rows, left=3, header=False, styles=_STYLES)
    return WRONG if wrong else 0


def _model_bytes(config: ServerConfig) -> int:
    """The memory of the models that the workers of a server begin with, as far as it can be known without one."""
    if not config.repositories:
        return 0
    try:
        return initial_model_bytes(config, read_models(config.repositories, (), config))
    except (ServingError, OSError):  # `sluice validate` says it, and so does the check of the partitions
        return 0


def partition_findings(server: ServerAddress) -> Iterator[Finding]:
    """A finding for each partition of a server; raises as `client.http.request`."""
    for state in server_partitions(server):
        if isinstance(state.partition, RemoteSlot) and not state.url:
            text = f"{state.partition.name}: vacant; {state.lost or 'no worker is placed there'}"
            yield Finding("server", Severity.NOTE, text)
            continue
        worker = "no running worker" if state.worker is None else f"worker {state.worker}"
        reasons = [*state.reasons, state.lost] if state.lost else state.reasons
        text = f"{state.partition.name}: {'; '.join([state.enforcement.value, *reasons])} ({worker})"
        yield Finding("server", Severity.WRONG if state.lost else _SEVERITIES[state.enforcement], text)
