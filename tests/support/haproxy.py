"""HAProxy before servers, as a Service of Kubernetes is: it passes connections on and watches who is ready."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer
from tests.support.tools import require_tool

SLOTS = 4
CHECK_MS = 100
"""The time between two health checks; on a busy machine an answer may take longer than that."""
_CONFIG = """
global
    stats socket {control} level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 5s
    option httpchk GET /v2/health/ready
    http-check expect status 200
    retries 3
    option redispatch
{listen}
"""
_LISTEN = """
listen {name}
    bind {address}
    balance roundrobin
{servers}
"""


class Proxy(NamedTuple):
    """A running proxy. It has slots for servers, and passes connections to those that are ready."""

    http_url: str
    grpc_url: str
    control: Path

    def add(self, slot: int, server: GatewayServer) -> None:
        """Put a server into a slot, and wait until it gets connections."""
        for name, port in (("http", server.http_port), ("grpc", server.grpc_port)):
            place = f"{name}/s{slot}"
            self.ask(f"set server {place} addr 127.0.0.1 port {port}")
            self.ask(f"set server {place} check-port {server.http_port}")
            self.ask(f"set server {place} state ready")
            self.ask(f"enable health {place}")
        until(lambda: self.is_up(slot))

    def is_up(self, slot: int) -> bool:
        """True if the server of a slot gets connections, of both protocols."""
        lines = [line.split(",") for line in self.ask("show stat").splitlines()]
        states = {(words[0], words[1]): words[17] for words in lines if len(words) > 17}
        return all(states[name, f"s{slot}"] == "UP" for name in ("http", "grpc"))

    def ask(self, command: str) -> str:
        """The answer to a command."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.control))
            connection.sendall(f"{command}\n".encode())
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).decode()


@contextmanager
def haproxy(directory: Path) -> Iterator[Proxy]:
    """A proxy whose slots are empty; `directory` keeps its files."""
    program = require_tool("haproxy")
    control, log = directory / "control", directory / "haproxy.log"
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in ("http", "grpc")}
    options = f"check inter {CHECK_MS}ms fall 1 rise 1 disabled"
    servers = "\n".join(f"    server s{slot} 127.0.0.1:1 {options}" for slot in range(SLOTS))
    text = "".join(
        _LISTEN.format(name=name, address=f"fd@{listener.fileno()}", servers=servers)
        for name, listener in listeners.items()
    )
    config = directory / "haproxy.cfg"
    config.write_text(_CONFIG.format(control=control, listen=text))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "-db", "-f", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[each.fileno() for each in listeners.values()],
        )
    urls = {name: f"127.0.0.1:{each.getsockname()[1]}" for name, each in listeners.items()}
    for each in listeners.values():
        each.close()
    try:
        until(lambda: control.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield Proxy(urls["http"], urls["grpc"], control)
    finally:
        process.terminate()
        process.wait(60)
