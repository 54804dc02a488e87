"""Several worker servers on this machine, as nodes of their own, and the configuration of a gateway over them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.worker_server import WorkerProcess, worker_server
from tests.support.triton.server import free_ports


class Cluster:
    """Worker servers `w0`, `w1` and so on, on the nodes `n0`, `n1` and so on; each can be ended and started again."""

    def __init__(self, directory: Path, count: int, arguments: Sequence[str]) -> None:
        self.ports = free_ports(count)
        self.workers: list[WorkerProcess] = []
        self._directory = directory
        self._arguments = arguments
        self._stack = ExitStack()
        for number in range(count):
            self.workers.append(self._started(number))

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [f"127.0.0.1:{port}" for port in self.ports]

    def config(self, **settings: Any) -> dict[str, object]:
        """The configuration of a gateway that has all workers as the class `edge`."""
        return {"partitions": {"remote": [{"name": "edge", "kind": "cpu1", "urls": self.urls}], **settings}}

    def kill(self, number: int) -> None:
        """Kill a worker server, whose worker process ends with it."""
        self.workers[number].process.kill()
        self.workers[number].process.wait()

    def start(self, number: int) -> None:
        """Start a worker server that has ended again, at the same address."""
        self.workers[number] = self._started(number)

    def close(self) -> None:
        """End all."""
        self._stack.close()

    def _started(self, number: int) -> WorkerProcess:
        directory = self._directory / f"w{number}"
        directory.mkdir(exist_ok=True)
        cores = available_cores()
        arguments = [
            *("--name", f"w{number}", "--node", f"n{number}", "--listen", self.urls[number]),
            *("--cores", str(cores[number % len(cores)]), "--cache", str(self._directory / "cache")),
            *self._arguments,
        ]
        return self._stack.enter_context(worker_server(directory, arguments))


@contextmanager
def cluster(directory: Path, count: int = 2, arguments: Sequence[str] = ()) -> Iterator[Cluster]:
    """Run worker servers until the block ends."""
    made = Cluster(directory, count, arguments)
    try:
        yield made
    finally:
        made.close()
