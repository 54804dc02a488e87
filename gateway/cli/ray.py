"""`sluice ray`: a Ray cluster on this machine with a gateway over it; what a cluster has; replacing its workers."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from sluice.gateway.cli.client.http import ServerAddress, decode, request
from sluice.gateway.cluster.ray.ask import report
from sluice.gateway.cluster.ray.local_cluster import LocalCluster
from sluice.gateway.cluster.ray.settle import check_extra
from sluice.gateway.config.server_config import read_document
from sluice.models.client_tls import ClientTls
from sluice.models.command_line import add_connection_options
from sluice.models.errors import ConfigError
from sluice.models.text_table import print_table

NOTHING = 1
"""Exit status when no cluster runs here."""
STATUS_TIMEOUT_S, REPLACE_TIMEOUT_S = 30.0, 300.0
PAUSE_S = 0.2
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
    replace.add_argument(
        "--url", help="URL of the gateway, which must have its models on a new worker before the next one is replaced"
    )
    add_connection_options(replace)
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
    url = options.url or cluster.gateway
    tls = ClientTls(options.cacert, options.cert, options.key)
    gateway = None if url is None else ServerAddress(url, options.header, tls)
    slots = options.partitions or [each["partition"] for each in cluster.report()["partitions"] if each["url"]]
    for slot in slots:
        _say(f"replacing the worker of {slot}")
        rows = cluster.report("replace", slot)["partitions"]
        worker = next(each["url"] for each in rows if each["partition"] == slot)
        if gateway is not None:
            _await_ready(gateway, slot, worker)
    return 0


def _await_ready(gateway: ServerAddress, slot: str, worker: str) -> None:
    """Wait until a gateway has loaded its models on the worker of a slot. Raises ServingError."""
    give_up_s = time.monotonic() + REPLACE_TIMEOUT_S
    while time.monotonic() < give_up_s:
        rows = decode(gateway.url, request(gateway, "/v2/sluice/partitions"), _Partitions).partitions
        if any(each.partition["name"] == slot and each.url == worker and not each.lost for each in rows):
            return
        time.sleep(PAUSE_S)
    raise ConfigError(f"{slot}: the gateway at {gateway.url} did not use the new worker within {REPLACE_TIMEOUT_S:g} s")


class _Partition(msgspec.Struct):
    partition: dict[str, Any]
    lost: str
    url: str = ""


class _Partitions(msgspec.Struct):
    partitions: list[_Partition]


class _Cluster(NamedTuple):
    """A cluster, the variables of programs that use it, and the URL of its gateway, if that is known."""

    address: str
    namespace: str
    environment: Mapping[str, str]
    gateway: str | None

    def report(self, *action: str) -> Any:
        """The contents of the cluster, as a document, after an action."""
        timeout_s = REPLACE_TIMEOUT_S if action else STATUS_TIMEOUT_S
        answer = report(self.address, self.namespace, *action, environment=self.environment, timeout_s=timeout_s)
        return json.loads(answer)


def _cluster(options: argparse.Namespace) -> _Cluster | None:
    """The cluster that is meant; None if none runs."""
    check_extra()
    if options.address is not None:
        return _Cluster(options.address, options.namespace or "sluice", {}, None)
    local = LocalCluster(options.directory, _say)
    state = local.state()
    if state is None:
        return None
    return _Cluster(state.address, options.namespace or state.namespace, local.environment, state.http or None)


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
