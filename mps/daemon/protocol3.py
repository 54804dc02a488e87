"""MPS control by `module verb` arguments, which newer drivers offer as well: protocol 3.

There is one server, of this user, as in protocol 2: clients find it through the daemon's own directory.
"""

import os
import re

from sluice.mps.daemon.channel import MpsChannel, unexpected_answer
from sluice.mps.daemon.control import ACTIVE, MpsClient, MpsServer
from sluice.mps.daemon.protocol2 import active_server

_ROWS = "--format=csv,noheader"
_PARTITION = re.compile(r"CUDA_MPS_SM_PARTITION=(\S+/\S+)")
_READY = "READY"


class Protocol3:
    """An MpsControl over a channel to the daemon."""

    def __init__(self, channel: MpsChannel) -> None:
        self._channel = channel
        self._uid = os.getuid()
        self._name = f"uid_{self._uid}"

    def ping(self) -> None:
        """Return when the daemon answers."""
        self._rows("server", "list")

    def start_server(self) -> MpsServer:
        """Start a server for this user and wait until it is active."""
        arguments = ("server", "create", f"--uid={self._uid}")
        answer = "" if self._servers() else self._channel.call(*arguments)
        return active_server(self, " ".join(arguments), answer)

    def servers(self) -> tuple[MpsServer, ...]:
        """The running servers; a server that is ready counts as active."""
        return tuple(self._servers().values())

    def clients(self) -> tuple[MpsClient, ...]:
        """The clients of all servers, by process id."""
        servers = self._servers()
        found = set()
        for pid, server, *_ in self._rows("client", "list", "--all"):
            if pid.isdecimal() and server in servers:
                found.add(MpsClient(int(pid), servers[server].pid))
        return tuple(sorted(found, key=lambda client: client.pid))

    def terminate_client(self, client: MpsClient) -> None:
        """Destroy a client's contexts."""
        answer = self._channel.call("client", "terminate", str(client.pid))
        if client in self.clients():
            raise unexpected_answer(f"client terminate {client.pid}", answer, "the client to be gone")

    def add_partition(self, device: str, chunks: int) -> str:
        """Set chunks of multiprocessors apart, before the server has clients."""
        taken = {name for _, _, name, *_ in self._sets()}
        name = next(name for number in range(len(taken) + 1) if (name := f"sluice{number}") not in taken)
        arguments = ("sm-partition", "create", name, f"--server={self._name}", f"--device={device}")
        answer = self._channel.call(*arguments, f"--chunks={chunks}")
        match = _PARTITION.search(answer)
        if match is None:
            raise unexpected_answer(" ".join(arguments), answer, "CUDA_MPS_SM_PARTITION=…")
        return match[1]

    def free_chunks(self) -> int:
        """The number of chunks of multiprocessors that are in no partition."""
        return sum(int(chunks) for _, _, _, chunks, _, _, status, _ in self._sets() if status == "unallocated")

    def quit(self, timeout_s: float) -> None:
        """Stop the daemon and its servers."""
        self._channel.call("-q", timeout_s=timeout_s)

    def _servers(self) -> dict[str, MpsServer]:
        found = {}
        for name, _, pid, status, *_ in self._rows("server", "list"):
            if pid.isdecimal():
                state = status.upper()
                found[name] = MpsServer(int(pid), ACTIVE if state == _READY else state)
        return found

    def _sets(self) -> list[list[str]]:
        rows = self._rows("sm-partition", "list", f"--server={self._name}", "--all")
        return [row for row in rows if len(row) == 8]

    def _rows(self, *arguments: str) -> list[list[str]]:
        answer = self._channel.call(*arguments, _ROWS)
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
        if any(len(row) < 4 for row in rows):
            raise unexpected_answer(" ".join(arguments), answer, "rows of values with commas between them")
        return rows
