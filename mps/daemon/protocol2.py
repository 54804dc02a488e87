"""MPS control by commands on standard input, which every driver has: protocol 2."""

import os
import re
import time

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.channel import MpsChannel, unexpected_answer
from sluice.mps.daemon.control import ACTIVE, FAULT, MpsClient, MpsControl, MpsServer

START_S = 20.0
"""Time for a server to become active."""

_LOOK_S = 0.05
_GONE = re.compile(r"Server \d+ not found")
"""The answer about a server that has ended since it was listed; the status of the command is 0 like that of most."""
_PARTITION = re.compile(r"(?:GPU|MIG)-[^\s/]+/\S+")
_DEVICE = re.compile(r"\S+\s+-\s+(?P<free>\d+)\s+\d+\s")


class Protocol2:
    """An MpsControl over a channel to the daemon."""

    def __init__(self, channel: MpsChannel) -> None:
        self._channel = channel

    def ping(self) -> None:
        """Return when the daemon answers."""
        question = "get_default_active_thread_percentage"
        answer = self._channel.send(question)
        try:
            float(answer)
        except ValueError:
            raise unexpected_answer(question, answer, "a percentage") from None

    def start_server(self) -> MpsServer:
        """Start a server for this user and wait until it is active."""
        command = f"start_server -uid {os.getuid()}"
        answer = "" if self._servers() else self._channel.send(command)
        return active_server(self, command, answer)

    def servers(self) -> tuple[MpsServer, ...]:
        """The running servers; there is none before the first client."""
        found = ((pid, self._status(pid)) for pid in self._servers())
        return tuple(MpsServer(pid, status) for pid, status in found if status)

    def clients(self) -> tuple[MpsClient, ...]:
        """The clients of all servers, by process id."""
        found = {
            MpsClient(pid, server) for server in self._servers() for pid in self._pids(f"get_client_list {server}")
        }
        return tuple(sorted(found, key=lambda client: client.pid))

    def terminate_client(self, client: MpsClient) -> None:
        """Destroy a client's contexts."""
        command = f"terminate_client {client.server} {client.pid}"
        answer = self._channel.send(command)
        if answer != "0":
            raise unexpected_answer(command, answer, "0")

    def add_partition(self, device: str, chunks: int) -> str:
        """Set chunks of multiprocessors apart; the daemon must have been started for static sets."""
        command = f"sm_partition add {device} {chunks}"
        answer = self._channel.send(command)
        match = _PARTITION.search(answer)
        if match is None:
            raise unexpected_answer(command, answer, "the name of a partition")
        return match[0]

    def free_chunks(self) -> int:
        """The number of chunks of multiprocessors that are in no partition."""
        answer = self._channel.send("lspart")
        rows = [match for line in answer.splitlines() if (match := _DEVICE.match(line.strip()))]
        if not rows:
            raise unexpected_answer("lspart", answer, "a row for the device")
        return sum(int(row["free"]) for row in rows)

    def quit(self, timeout_s: float) -> None:
        """Stop the daemon and its servers, by force after `timeout_s`."""
        self._channel.send(f"quit -t {max(1, round(timeout_s))}", timeout_s + 5)

    def _servers(self) -> tuple[int, ...]:
        return self._pids("get_server_list")

    def _status(self, server: int) -> str:
        """The status of a server, "" if it has just ended."""
        command = f"get_server_status {server}"
        answer = self._channel.send(command)
        if _GONE.fullmatch(answer):
            return ""
        words = answer.upper().split()
        if not words:
            raise unexpected_answer(command, "", "its status")
        return words[-1]

    def _pids(self, command: str) -> tuple[int, ...]:
        answer = self._channel.send(command)
        if _GONE.fullmatch(answer):
            return ()
        lines = answer.split()
        if not all(line.isdecimal() for line in lines):
            raise unexpected_answer(command, answer, "process ids, one a line")
        return tuple(map(int, lines))


def active_server(control: MpsControl, command: str, answer: str) -> MpsServer:
    """Wait, with a time limit, for the server that a command has started."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for server in control.servers():
            if server.status == ACTIVE:
                return server
            if server.status == FAULT:
                raise ControlFailed(f"MPS server {server.pid} is in FAULT until its clients have exited")
        time.sleep(_LOOK_S)
    raise unexpected_answer(command, answer, f"a server that is {ACTIVE} within {START_S:g} s")
