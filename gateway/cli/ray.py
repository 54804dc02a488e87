"""`sluice ray`: a Ray cluster on this machine with a gateway over it; what a cluster has; replacing its workers."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sluice.gateway.cluster.ray.local_cluster import LocalCluster
from sluice.gateway.cluster.ray.settle import check_extra
from sluice.gateway.config.server_config import read_document
from sluice.models.errors import ConfigError
from sluice.models.processes import module_environment
from sluice.models.text_table import print_table

NOTHING = 1
"""Exit status when no cluster runs here."""
STATUS_TIMEOUT_S, REPLACE_TIMEOUT_S = 30.0, 300.0
DASHBOARD_PORT = 8265

_SHOWN = ("CPU", "GPU")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    up = _action(actions, "up", _up, "start Ray on this machine, and a gateway whose workers it places")
    up.add_argument("files", nargs="*", metavar="MODEL|DIR", help="what to serve, as for sluice serve")
    up.add_argument("--config", type=Path, metavar="FILE", help="the gateway's settings, in YAML")
    up.add_argument("--cores", type=int, metavar="N", help="cores that Ray may give to workers (default: all)")
    up.add_argument("--gpus", type=int, metavar="N", help="GPUs that Ray may give to workers (default: all)")
    up.add_argument(
        "--dashboard-port", type=int, default=DASHBOARD_PORT, metavar="PORT", help="0 for none (default %(default)s)"
    )
    down = _action(actions, "down", _down, "end the gateway, its workers and Ray, as sluice ray up has started them")
    status = _action(actions, "status", _status, "show the nodes, the workers, and the gateways that have them")
    status.add_argument("--json", action="store_true", help="print JSON")
    replace = _action(actions, "replace", _replace, "replace workers one after the other, without a failed request")
    replace.add_argument("partitions", nargs="*", metavar="PARTITION", help="such as edge-0 (default: all)")
    for action in (up, down, status, replace):
        action.add_argument(
            "--directory",
            type=Path,
            default=_default_directory(),
            metavar="DIR",
            help="its files (default %(default)s)",
        )
    for action in (status, replace):
        action.add_argument("--address", metavar="HOST:PORT", help="another cluster, or auto")
        action.add_argument("--namespace", metavar="NAME", help="the gateways' namespace in that (default sluice)")


def _action(actions: Any, name: str, command: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help)
    parser.set_defaults(command=command)
    return parser


def _default_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "sluice", "ray")


def _up(options: argparse.Namespace) -> int:
    check_extra()
    settings: Any = {} if options.config is None else read_document(options.config)[0]
    if not isinstance(settings, dict):
        raise ConfigError(f"{options.config}: expected the settings of a server, got {type(settings).__name__}")
    signal.signal(signal.SIGTERM, _exit)  # what was started is ended
    state = LocalCluster(options.directory, _say).up(
        settings, options.files, options.cores, options.gpus, options.dashboard_port
    )
    rows = [("HTTP", state.http), ("gRPC", state.grpc), ("Ray", state.address), ("files", str(options.directory))]
    if state.dashboard:
        rows.insert(2, ("dashboard of Ray", state.dashboard))
    print_table(rows, 2, header=False)
    return 0


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _down(options: argparse.Namespace) -> int:
    if not LocalCluster(options.directory, _say).down():
        _say("no cluster of this directory runs")
        return NOTHING
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    if cluster is None:
        _say("no cluster of this directory runs; start one with sluice ray up, or name another with --address")
        return NOTHING
    document = cluster.report()
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        _print(document)
    return 0


def _replace(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    if cluster is None:
        _say("no cluster of this directory runs")
        return NOTHING
    slots = options.partitions or [each["partition"] for each in cluster.report()["partitions"] if each["url"]]
    for slot in slots:
        _say(f"replacing the worker of {slot}")
        cluster.report(slot)
    return 0


class _Cluster(NamedTuple):
    address: str
    namespace: str
    environment: Mapping[str, str]

    def report(self, slot: str | None = None) -> Any:
        """What the cluster has, as a document, after the worker of a slot was replaced."""
        command = [sys.executable, "-P", "-m", "sluice.gateway.cluster.ray.report", self.address, self.namespace]
        command += [] if slot is None else [slot]
        timeout_s = STATUS_TIMEOUT_S if slot is None else REPLACE_TIMEOUT_S
        environment = module_environment() | self.environment
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"ray: no answer of the cluster at {self.address} in {timeout_s:g} s") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
            raise ConfigError(f"ray: {self.address}: {lines[-1]:.300}")
        return json.loads(done.stdout)


def _cluster(options: argparse.Namespace) -> _Cluster | None:
    """The cluster that is meant; None if none runs."""
    check_extra()
    if options.address is not None:
        return _Cluster(options.address, options.namespace or "sluice", {})
    local = LocalCluster(options.directory, _say)
    state = local.state()
    return None if state is None else _Cluster(state.address, options.namespace or state.namespace, local.environment)


def _print(document: Any) -> None:
    nodes = [("node", "address", "resources")]
    for each in document["nodes"]:
        shown = {
            name: amount for name, amount in each["resources"].items() if name in _SHOWN or name.startswith("mig-")
        }
        text = ", ".join(f"{name} {amount:g}" for name, amount in sorted(shown.items()))
        nodes.append((each["node"], each["address"], text or "none"))
    print_table(nodes, 3)
    print()
    rows = [("partition", "node", "worker", "gateway", "reason")]
    rows.extend(
        (each["partition"], each["node"], each["url"] or "-", each["gateway"] or "-", each["reason"])
        for each in document["partitions"]
    )
    if len(rows) == 1:
        print("no gateway has workers here")
    else:
        print_table(rows, 5)


def _say(sentence: str) -> None:
    print(f"sluice: {sentence}", file=sys.stderr, flush=True)
