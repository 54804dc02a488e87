"""MPS control by commands on standard input, which every driver has: protocol 2."""

import os
import re
import time

from models.errors import ControlFailed
from mps.mps_channel import MpsChannel, unexpected
from mps.mps_control import ACTIVE, FAULT, MpsClient, MpsControl, MpsServer, SmPartition
from mps.mps_environment import memory_limit

START_S = 20.0
"""How long a server may take to become active."""

_LOOK_S = 0.05
_PARTITION = re.compile(r"(?:GPU|MIG)-[^\s/]+/\S+")
_LISTED = re.compile(r"(?P<device>\S+)\s+(?P<name>\S+)\s+\S+\s+(?P<chunks>\d+)\s+\S+\s+(?P<sms>\d+)\s+(?P<used>Yes|-)")
_DEVICE = re.compile(r"\S+\s+-\s+(?P<free>\d+)\s+\d+\s")
_SIZE = re.compile(r"\b(?P<number>0x[0-9a-fA-F]+|\d+)\s*(?P<unit>[KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Protocol2:
    """An MpsControl over a channel to the daemon."""

    def __init__(self, channel: MpsChannel) -> None:
        self._channel = channel

    def ping(self) -> None:
        """Return when the daemon answers."""
        self.default_share()

    def start_server(self) -> MpsServer:
        """Have a server for this user, and wait until it is active."""
        command = f"start_server -uid {os.getuid()}"
        answer = "" if self._servers() else self._channel.say(command)
        return active_server(self, command, answer)

    def servers(self) -> tuple[MpsServer, ...]:
        """Those that run; none before the first client has come."""
        return tuple(MpsServer(pid, self._status(pid)) for pid in self._servers())

    def clients(self) -> tuple[MpsClient, ...]:
        """The clients of all servers, by process id."""
        found = {
            MpsClient(pid, server) for server in self._servers() for pid in self._pids(f"get_client_list {server}")
        }
        return tuple(sorted(found, key=lambda client: client.pid))

    def default_share(self) -> float:
        """Percentage of the multiprocessors that later servers give to each client at most."""
        return self._percentage("get_default_active_thread_percentage")

    def set_default_share(self, percent: int) -> None:
        """Set it, for later servers."""
        self._set_percentage(f"set_default_active_thread_percentage {percent}", percent)

    def share(self, server: int) -> float:
        """The same of a server that runs."""
        return self._percentage(f"get_active_thread_percentage {server}")

    def set_share(self, server: int, percent: int) -> None:
        """Set it, for clients that come later."""
        self._set_percentage(f"set_active_thread_percentage {server} {percent}", percent)

    def set_default_memory_limit(self, device: str, memory_bytes: int) -> None:
        """What each client of later servers may take of a device's memory."""
        limit = memory_limit(memory_bytes)
        self._channel.say(f"set_default_device_pinned_mem_limit {device} {limit}")
        question = f"get_default_device_pinned_mem_limit {device}"
        answer = self._channel.say(question)
        sizes = [int(match["number"], 0) * _UNITS[match["unit"]] for match in _SIZE.finditer(answer)]
        if memory_bytes >> 20 << 20 not in sizes:
            raise unexpected(question, answer, limit)

    def terminate_client(self, client: MpsClient) -> None:
        """Destroy a client's contexts."""
        command = f"terminate_client {client.server} {client.pid}"
        answer = self._channel.say(command)
        if answer != "0":
            raise unexpected(command, answer, "0")

    def add_partition(self, device: str, chunks: int) -> str:
        """Set multiprocessors apart, in chunks; the daemon must have been started for it."""
        command = f"sm_partition add {device} {chunks}"
        answer = self._channel.say(command)
        match = _PARTITION.search(answer)
        if match is None:
            raise unexpected(command, answer, "the name of a partition")
        return match[0]

    def remove_partition(self, name: str) -> None:
        """Give them back."""
        device, partition = name.split("/", 1)
        command = f"sm_partition rm {device} {partition}"
        answer = self._channel.say(command)
        if any(each.name.split("/", 1)[1] == partition for each in self.partitions()):
            raise unexpected(command, answer, "the partition to be gone")

    def partitions(self) -> tuple[SmPartition, ...]:
        """The sets that there are; devices are told by the beginning of their UUIDs."""
        rows = [match for line in self._channel.say("lspart").splitlines() if (match := _LISTED.match(line.strip()))]
        return tuple(
            SmPartition(f"{row['device']}/{row['name']}", int(row["chunks"]), int(row["sms"]), row["used"] == "Yes")
            for row in rows
            if row["name"] != "-"  # the device itself
        )

    def free_chunks(self) -> int:
        """How many chunks of multiprocessors are in none."""
        answer = self._channel.say("lspart")
        rows = [match for line in answer.splitlines() if (match := _DEVICE.match(line.strip()))]
        if not rows:
            raise unexpected("lspart", answer, "a row for the device")
        return sum(int(row["free"]) for row in rows)

    def quit(self, timeout_s: float) -> None:
        """End the daemon and its servers, by force after `timeout_s`."""
        self._channel.say(f"quit -t {max(1, round(timeout_s))}", timeout_s + 5)

    def _servers(self) -> tuple[int, ...]:
        return self._pids("get_server_list")

    def _status(self, server: int) -> str:
        command = f"get_server_status {server}"
        words = self._channel.say(command).upper().split()
        if not words:
            raise unexpected(command, "", "its status")
        return words[-1]

    def _pids(self, command: str) -> tuple[int, ...]:
        answer = self._channel.say(command)
        lines = answer.split()
        if not all(line.isdecimal() for line in lines):
            raise unexpected(command, answer, "process ids, one a line")
        return tuple(map(int, lines))

    def _percentage(self, command: str) -> float:
        answer = self._channel.say(command)
        try:
            return float(answer)
        except ValueError:
            raise unexpected(command, answer, "a percentage") from None

    def _set_percentage(self, command: str, percent: int) -> None:
        """Whether it was set is told by asking: not all versions say anything."""
        if not 1 <= percent <= 100:
            raise ControlFailed(f"MPS command '{command}': expected 1 to 100 percent")
        answer = self._channel.say(command)
        question = command.replace("set_", "get_", 1).rsplit(" ", 1)[0]
        if self._percentage(question) != percent:
            raise unexpected(command, answer, f"{percent} to be set")


def active_server(control: MpsControl, command: str, answer: str) -> MpsServer:
    """Wait, bounded, for the server that a command has asked for."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for server in control.servers():
            if server.status == ACTIVE:
                return server
            if server.status == FAULT:
                raise ControlFailed(f"MPS server {server.pid} is in FAULT until the clients that it has are gone")
        time.sleep(_LOOK_S)
    raise unexpected(command, answer, f"a server that is {ACTIVE} within {START_S:g} s")
