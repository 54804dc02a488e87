"""`sluice worker`: serves the worker of one partition to a gateway on this machine or another one."""

import argparse
import asyncio
import logging
from pathlib import Path
from typing import Any

from sluice.models.command_line import quantity

logger = logging.getLogger(__name__)

_SAME_NAME = ("name", "node", "listen", "advertise", "key_file", "cache", "cache_mb", "drain_s")
"""Options that override the setting of the same name."""
_AUTO = "auto"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_worker)
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="settings in YAML; options given here override them")
    add("--name", help="the name of the worker (default: that of its partition)")
    partition = parser.add_mutually_exclusive_group()
    partition.add_argument(
        "--cores",
        metavar="N,N|auto:N",
        help="the cores of the partition, or a number of cores that no other worker of this machine and user holds",
    )
    partition.add_argument("--gpu", choices=[_AUTO], help="the one GPU or MIG instance that this process was given")
    add("--listen", metavar="HOST:PORT", help="the address to listen on; port 0 takes a free one (default 127.0.0.1:0)")
    add("--advertise", metavar="HOST", help="the host at which gateways reach it (default: that of --listen)")
    add("--node", metavar="NAME", help="the name of the machine (default: its host name)")
    add("--cache", metavar="DIR", help="where models are kept that come from elsewhere")
    add("--cache-mb", type=int, metavar="N", help="the size of that cache (default 10240)")
    add("--key-file", metavar="FILE", help="the key that gateways must have")
    add("--tls-ca", metavar="FILE", help="the authority that gateways' certificates are from, in PEM")
    add("--tls-certificate", metavar="FILE", help="the certificate of the worker, in PEM")
    add("--tls-private-key", metavar="FILE", help="the key of that certificate, in PEM")
    add("--tls-server-name", metavar="NAME", help="the name in the certificates of workers (default: their host)")
    add(
        "--drain-s",
        type=quantity("_s"),
        metavar="S",
        help="time from the signal to stop until open batches are given up (default 30)",
    )
    add("--ready-file", type=Path, metavar="FILE", help="write its name, node and address here, as JSON, when ready")
    add("--log-file", type=Path, metavar="FILE", help="append log lines to this file; SIGUSR1 opens it again")
    add("--log-format", choices=["text", "json"], default="text", help="format of log lines (default text)")
    add(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="lowest level that is logged (default info)",
    )


def _worker(options: argparse.Namespace) -> int:
    import uvloop

    from sluice.gateway.config.access import is_loopback
    from sluice.gateway.config.tls import TlsSettings
    from sluice.gateway.front_door.addresses import listening_address
    from sluice.gateway.front_door.listener import listen
    from sluice.gateway.observability.logs import LogFormat, configure
    from sluice.gateway.partitions.mps_daemons import mps_daemons
    from sluice.gateway.partitions.worker_output import launch_logged_worker
    from sluice.gateway.server.signals import ServerSignals
    from sluice.gateway.worker_protocol.address import split_address
    from sluice.gateway.worker_protocol.client import read_key
    from sluice.gateway.worker_server.server import BACKLOG, WorkerServer
    from sluice.gateway.worker_server.settings import worker_settings
    from sluice.models.errors import ConfigError
    from sluice.mps.partitions.cpu import check_partitions
    from sluice.mps.partitions.partition import MpsPartition

    with ServerSignals() as signals:
        settings = worker_settings(options.config, _given(options))
        configure(LogFormat(options.log_format), options.log_level, options.log_file)
        check_partitions([settings.partition])
        if options.ready_file is not None:
            options.ready_file.unlink(missing_ok=True)  # left by an earlier worker server
        key = read_key(settings.key_file)
        tls = settings.tls
        context = None if tls is None else TlsSettings(tls.certificate, tls.private_key, tls.ca).ssl_context(("h2",))
        host, port = split_address(settings.listen, least_port=0)
        host = listening_address(host)
        if not is_loopback(host) and not key and tls is None:
            raise ConfigError(
                f"listen: {settings.listen} lets other machines run models here; expected key_file, tls, or a loopback "
                "address"
            )
        if isinstance(settings.partition, MpsPartition):
            signals.unwind()
        with mps_daemons([settings.partition]) as controls:

            async def serve() -> int:
                listener = listen("worker", host, port, BACKLOG)
                server = WorkerServer(settings, listener, key, context, dict(controls), launch_logged_worker)
                return await server.run(options.ready_file, signals)

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(serve())


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the options give. Raises ConfigError or PartitionError."""
    from sluice.models.errors import ConfigError

    given = {name: value for name in _SAME_NAME if (value := getattr(options, name)) is not None}
    tls = {
        "ca": options.tls_ca,
        "certificate": options.tls_certificate,
        "private_key": options.tls_private_key,
    }
    if any(tls.values()):
        if not all(tls.values()):
            raise ConfigError("expected --tls-ca, --tls-certificate and --tls-private-key together")
        given["tls"] = tls | {"server_name": options.tls_server_name or ""}
    if options.cores is not None:
        given["partition"] = {"kind": "cpu", "name": options.name or "worker", "cores": _cores(options.cores)}
    elif options.gpu is not None:
        given["partition"] = _gpu(options.name)
    return given


def _cores(text: str) -> list[int]:
    from sluice.gateway.worker_server.cores import take_cores
    from sluice.models.errors import ConfigError

    kind, colon, count = text.partition(":")
    try:
        return list(take_cores(int(count))) if kind == _AUTO and colon else [int(core) for core in text.split(",")]
    except ValueError:
        raise ConfigError(f"--cores: expected cores such as 0,1, or auto:N, got '{text:.80}'") from None


def _gpu(name: str | None) -> dict[str, Any]:
    import msgspec

    from sluice.models.errors import ConfigError
    from sluice.mps.nvidia.given_devices import given_partitions

    given = given_partitions()
    if len(given) != 1:
        names = ", ".join(each.name for each in given) or "none"
        raise ConfigError(f"--gpu auto: expected one GPU or MIG instance, the process was given {names}")
    partition: dict[str, Any] = msgspec.to_builtins(given[0])
    return partition if name is None else partition | {"name": name}
