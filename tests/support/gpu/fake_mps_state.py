"""State of a fake MPS daemon: servers, clients, shares, limits and static sets of multiprocessors, with their rules."""

import os
from collections.abc import Iterator
from typing import Any

OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
RPC_FAILURE = 806
SERVER_NOT_READY = 807
MAX_CLIENTS_REACHED = 808
CLIENT_TERMINATED = 810
INVALID_RESOURCE_CONFIGURATION = 915
CHUNK = 8
"""Multiprocessors in a chunk of a static set, from Hopper on."""
FEWEST = 8
"""Multiprocessors of the smallest share."""
MIB = 1 << 20
UNITS = {"M": MIB, "G": 1 << 30}


def size_of(text: str) -> int:
    """The bytes of a limit; raises ValueError for a text that MPS would not accept."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in UNITS:
        raise ValueError(text)
    return int(number) * UNITS[unit]


class FakeClient:
    """A process with a context; `connection` carries the error when the context is lost."""

    def __init__(self, pid: int, name: str, connection: Any, sms: int, limit: int, partition: str) -> None:
        self.pid = pid
        self.name = name
        self.connection = connection
        self.sms = sms
        self.limit = limit
        self.partition = partition
        self.used = 0


class FakeServer:
    """A server of one user; clients wait until it is ready."""

    def __init__(self, pid: int, uid: int, share: float, limit: int) -> None:
        self.pid = pid
        self.uid = uid
        self.share = share
        self.limit = limit
        self.status = "INITIALIZING"
        self.clients: list[FakeClient] = []


class FakeState:
    """State of the daemon of one device."""

    def __init__(self, device: str, settings: dict[str, Any], *, static: bool) -> None:
        self.device = device or "GPU-00000000-0000-0000-0000-000000000000"
        self.static = static
        self.old = "static" in settings.get("without", ())
        self.sms = int(settings.get("sms", 132))
        self.memory = int(settings.get("memory_mib", 81_559)) * MIB
        self.max_clients = int(settings.get("max_clients", 48))
        self.share = 100.0
        self.limit = 0
        self.servers: dict[int, FakeServer] = {}
        self.sets: dict[str, int] = {}
        self.set_names: dict[str, str] = {}
        self.wedged: set[int] = set()
        self._sets_made = 0

    def clients(self) -> Iterator[tuple[FakeServer, FakeClient]]:
        for server in self.servers.values():
            for client in server.clients:
                yield server, client

    def admit(self, server: FakeServer, wish: dict[str, Any], connection: Any) -> FakeClient | int:
        """Admit a client; returns the client, or a CUDA error instead."""
        if server.status == "FAULT":
            return SERVER_NOT_READY
        if len(server.clients) >= self.max_clients:
            return MAX_CLIENTS_REACHED
        partition = str(wish.get("partition", "")).rsplit("/", 1)[-1]
        if self.static or self.sets or partition:
            if partition not in self.sets:
                return INVALID_RESOURCE_CONFIGURATION
            sms = self.sets[partition] * CHUNK
        else:
            share = min(server.share, float(wish.get("share") or 100))
            sms = min(max(FEWEST, 2 * int(share / 100 * self.sms / 2)), self.sms)
        limits = [limit for limit in (server.limit, int(wish.get("limit") or 0)) if limit]
        client = FakeClient(wish["pid"], wish["name"], connection, sms, min(limits, default=self.memory), partition)
        server.clients.append(client)
        return client

    def allocate(self, client: FakeClient, size: int) -> bool:
        """Allocate memory for a client; false beyond its limit or the device's memory."""
        if client.used + size > client.limit or sum(each.used for _, each in self.clients()) + size > self.memory:
            return False
        client.used += size
        return True

    def leave(self, client: FakeClient) -> None:
        """Remove a client; a faulty server recovers when its last client leaves."""
        for server in self.servers.values():
            if client in server.clients:
                server.clients.remove(client)
                if server.status == "FAULT" and not server.clients:
                    server.status = "ACTIVE"

    @property
    def free_chunks(self) -> int:
        return self.sms // CHUNK - sum(self.sets.values())

    def add_set(self, chunks: int, name: str = "") -> str | None:
        """Reserve chunks; returns the opaque part of the set's name, or None when too few are free."""
        if not 0 < chunks <= self.free_chunks:
            return None
        self._sets_made += 1
        opaque = f"{chr(64 + self._sets_made)}x4{'A' * 33}"
        self.sets[opaque] = chunks
        self.set_names[name or opaque] = opaque
        return opaque

    def remove_set(self, opaque: str) -> bool:
        if opaque not in self.sets or self.set_used(opaque):
            return False
        del self.sets[opaque]
        self.set_names = {name: each for name, each in self.set_names.items() if each != opaque}
        return True

    def set_used(self, opaque: str) -> bool:
        return any(client.partition == opaque for _, client in self.clients())

    def server_of(self, uid: int) -> FakeServer | None:
        return next((server for server in self.servers.values() if server.uid == uid), None)

    def new_server(self, pid: int, uid: int | None = None) -> FakeServer:
        server = FakeServer(pid, os.getuid() if uid is None else uid, self.share, self.limit)
        self.servers[pid] = server
        return server
