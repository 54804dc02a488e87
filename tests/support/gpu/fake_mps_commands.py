"""The commands of a fake MPS daemon, in both protocols, with the answers that the real daemon prints.

The answers of protocol 2 are those of driver 580 (tests/fixtures/gpu/h200), except for static sets, which it lacks.
"""

import os
from collections.abc import Callable
from typing import Any

from tests.support.gpu.fake_mps_state import (
    CHUNK,
    CLIENT_TERMINATED,
    ILLEGAL_ADDRESS,
    UNITS,
    FakeServer,
    FakeState,
    size_of,
)

Answer = tuple[str, int]
PS = f"{'PID':<10}{'ID':<10}{'SERVER':<15}{'DEVICE':<26}{'NAMESPACE':<15}{'COMMAND':<15}"
DEVICE_NAME = "NVIDIA H200"
LSPART = (
    "GPU           Partition                                 free   used   free   used   clients\n"
    "                                                        chunk  chunk  SM     SM"
)


class Commands:
    """Executes commands; `start_server`, `lose` and `quit` call the daemon, which owns processes and sockets."""

    def __init__(
        self,
        state: FakeState,
        start_server: Callable[[int], None],
        lose: Callable[[Any, int], None],
        quit: Callable[[], None],
    ) -> None:
        self._state = state
        self._begin_server = start_server
        self._lose = lose
        self._end = quit

    def say(self, line: str) -> Answer | None:
        """The answer of protocol 2 to a line, with its status; None for a command that never answers."""
        name, *words = line.split()
        method = getattr(self, f"_{name.lstrip('_')}", None)
        if method is None:
            return f'Unknown command "{name}"', 0
        try:
            found = method(*words)
        except (TypeError, ValueError):
            return f"Invalid arguments: {line}", 1
        except KeyError as server:
            return f"Server {server} not found", 0
        return found if found is None or isinstance(found, tuple) else (found, 0)

    def call(self, arguments: list[str]) -> Answer | None:
        """The answer of protocol 3 to arguments."""
        if arguments == ["-q"]:
            self._end()
            return "", 0
        module, verb, *rest = [*arguments, "", ""]
        words = [word for word in rest if word and not word.startswith("--")]
        options = dict(word[2:].split("=", 1) for word in rest if word.startswith("--") and "=" in word)
        method = getattr(self, f"_v3_{module.replace('-', '_')}_{verb}", None)
        if method is None:
            return f"Unknown command: {' '.join(arguments)}", 1
        try:
            found = method(words, options)
        except (KeyError, ValueError, IndexError) as error:
            return f"Invalid argument: {error}", 1
        return found if found is None or isinstance(found, tuple) else (found, 0)

    def _get_server_list(self) -> str:
        return "\n".join(map(str, self._state.servers))

    def _get_server_status(self, pid: str) -> str:
        return self._state.servers[int(pid)].status

    def _start_server(self, flag: str, uid: str) -> str:
        self._begin_server(int(uid))
        return ""

    def _get_client_list(self, pid: str) -> str:
        return "\n".join(str(client.pid) for client in self._state.servers[int(pid)].clients)

    def _get_device_client_list(self, pid: str = "") -> str:
        rows = [
            f"{client.pid}.{index}"
            for server in self._state.servers.values()
            for index, client in enumerate(server.clients, 1)
            if not pid or server.pid == int(pid)
        ]
        return "\n".join([f"[0] 00:00.0, {DEVICE_NAME}", *rows]) if rows else ""

    def _ps(self, flag: str = "", pid: str = "") -> str:
        if not self._state.servers:
            return "Server not found"
        device = self._state.device[:22]
        rows = [
            f"{client.pid:<10}{index:<10}{server.pid:<15}{device:<26}{'4026531836':<15}{client.name}"
            for server in self._state.servers.values()
            for index, client in enumerate(server.clients, 1)
            if not pid or server.pid == int(pid)
        ]
        return "\n".join([PS, *rows]) if rows else ""

    def _get_default_active_thread_percentage(self) -> str:
        return f"{self._state.share:.1f}"

    def _set_default_active_thread_percentage(self, percent: str) -> str:
        self._state.share = _percent(percent) or self._state.share
        return self._get_default_active_thread_percentage()

    def _get_active_thread_percentage(self, pid: str) -> str:
        return f"{self._state.servers[int(pid)].share:.1f}"

    def _set_active_thread_percentage(self, pid: str, percent: str) -> str:
        server = self._state.servers[int(pid)]
        server.share = _percent(percent) or server.share
        return self._get_active_thread_percentage(pid)

    def _get_default_client_priority(self) -> str:
        return "0"

    def _device_query(self, *words: str) -> str:
        row = f"0,0000:00.06.00,{self._state.device},{DEVICE_NAME},N/A"
        names = ["Default", *(f"Server {pid}" for pid in self._state.servers)]
        return "\n\n".join(f"{name}\nDevice Ordinal,PCI IDs,UUID,Name,Attributes\n{row}" for name in names)

    def _get_default_device_pinned_mem_limit(self, device: str) -> str:
        self._check(device)
        return _size(self._state.limit)

    def _set_default_device_pinned_mem_limit(self, device: str, size: str) -> str:
        self._check(device)
        self._state.limit = size_of(size)
        return ""

    def _get_device_pinned_mem_limit(self, pid: str, device: str) -> str:
        self._check(device)
        return _size(self._state.servers[int(pid)].limit)

    def _set_device_pinned_mem_limit(self, pid: str, device: str, size: str) -> str:
        self._check(device)
        self._state.servers[int(pid)].limit = size_of(size)
        return ""

    def _terminate_client(self, server: str, client: str) -> str | None:
        """Destroy the contexts of a client, which is listed until its process ends."""
        if int(server) not in self._state.servers:
            return f"Server {server} not found\nServer {server} not found!\n1"
        for each in self._state.servers[int(server)].clients:
            if each.pid == int(client):
                if each.pid in self._state.wedged:
                    return None
                self._lose(each, CLIENT_TERMINATED)
                return "0"
        return f"Invalid process {client}!\n1"

    def _sm_partition(self, verb: str, device: str, what: str) -> str | Answer:
        if self._state.old:
            return 'Unknown command "sm_partition"'
        if not self._state.static:
            return "Static partitioning is not enabled", 1
        self._check(device)
        if verb == "add":
            opaque = self._state.add_set(int(what))
            return ("Failed to create partition", 1) if opaque is None else self._created(opaque)
        return "" if self._state.remove_set(what) else ("Failed to remove partition", 1)

    def _created(self, opaque: str) -> str:
        return f"Partition {self._state.device}/{opaque} created"

    def _lspart(self) -> str | Answer:
        state = self._state
        if state.old:
            return 'Unknown command "lspart"'
        if not state.static:
            return "Static partitioning is not enabled", 1
        used, device = sum(state.sets.values()), state.device[:12]
        left = state.sms - used * CHUNK
        rows = [f"{device:<13} {'-':<41} {state.free_chunks:<6} {used:<6} {left:<6} {used * CHUNK:<6} -"]
        rows += [
            f"{device:<13} {opaque:<41} {'-':<6} {chunks:<6} {'-':<6} {chunks * CHUNK:<6} "
            f"{'Yes' if state.set_used(opaque) else '-'}"
            for opaque, chunks in state.sets.items()
        ]
        return "\n".join([LSPART, *rows])

    def _quit(self, flag: str = "", timeout: str = "") -> str:
        self._end()
        return ""

    def _inject(self, what: str, pid: str = "") -> str:
        if what == "fault":
            for server in self._state.servers.values():
                server.status = "FAULT" if server.clients else server.status
                for client in server.clients:
                    self._lose(client, ILLEGAL_ADDRESS)
        elif what == "wedge":
            self._state.wedged.add(int(pid))
        return ""

    def _check(self, device: str) -> None:
        if device != "0" and not self._state.device.startswith(device):
            raise ValueError(device)

    def _v3_server_create(self, words: list[str], options: dict[str, str]) -> str:
        self._begin_server(int(options.get("uid", os.getuid())))
        return ""

    def _v3_server_list(self, words: list[str], options: dict[str, str]) -> str:
        return "\n".join(
            f"uid_{server.uid},{server.uid},{server.pid},{_STATES[server.status]},/,{self._state.device},-"
            for server in self._state.servers.values()
        )

    def _v3_server_set(self, words: list[str], options: dict[str, str]) -> str:
        server = self._server(words[0])
        if "active-thread-percentage" in options:
            server.share = _percent(options["active-thread-percentage"]) or server.share
        if "pinned-memory-limit" in options:
            server.limit = size_of(options["pinned-memory-limit"])
        return ""

    def _v3_namespace_get(self, words: list[str], options: dict[str, str]) -> str:
        server = self._server(words[1])
        return f"{server.share:g}" if words[2] == "active-thread-percentage" else f"{server.limit // UNITS['M']}M"

    def _v3_client_list(self, words: list[str], options: dict[str, str]) -> str:
        return "\n".join(
            f"{client.pid},uid_{server.uid},0,default,{client.name}" for server, client in self._state.clients()
        )

    def _v3_client_terminate(self, words: list[str], options: dict[str, str]) -> str | Answer | None:
        for server, client in self._state.clients():
            if client.pid == int(words[0]):
                found = self._terminate_client(str(server.pid), words[0])
                if found is not None:
                    self._state.leave(client)
                return None if found is None else ""
        return "Client not found", 1

    def _v3_sm_partition_create(self, words: list[str], options: dict[str, str]) -> str | Answer:
        self._check(options["device"])
        opaque = self._state.add_set(int(options["chunks"]), words[0])
        if opaque is None:
            return "Not enough free chunks", 1
        device, sms = self._state.device, self._state.sets[opaque] * CHUNK
        made = f"SM partition '{words[0]}' created on device {device} (sm-count={sms})"
        return f"{made}\nCUDA_MPS_SM_PARTITION={device}/{opaque}"

    def _v3_sm_partition_delete(self, words: list[str], options: dict[str, str]) -> str | Answer:
        self._check(options["device"])
        if not self._state.remove_set(self._state.set_names[words[0]]):
            return "SM partition has active clients", 1
        return f"SM partition '{words[0]}' deleted from device {self._state.device}"

    def _v3_sm_partition_list(self, words: list[str], options: dict[str, str]) -> str:
        state = self._state
        rows = [
            f"{options['server']},{state.device},{name},{state.sets[opaque]},{state.sets[opaque] * CHUNK},false,"
            f"created,{opaque}"
            for name, opaque in state.set_names.items()
        ]
        if state.free_chunks:
            rows.append(
                f"{options['server']},{state.device},-,{state.free_chunks},{state.free_chunks * CHUNK},-,unallocated,-"
            )
        return "\n".join(rows)

    def _server(self, name: str) -> FakeServer:
        return {f"uid_{server.uid}": server for server in self._state.servers.values()}[name]


_STATES = {"ACTIVE": "Ready", "INITIALIZING": "Initializing", "FAULT": "Fault"}


def _percent(text: str) -> float:
    """A percentage; 0 changes nothing."""
    percent = float(text)
    if not 0 <= percent <= 100:
        raise ValueError(text)
    return percent


def _size(limit: int) -> str:
    """A memory limit as it was most likely set; "" without one."""
    if not limit:
        return ""
    return f"{limit // UNITS['M']}M" if limit % UNITS["G"] else f"{limit // UNITS['G']}G"
