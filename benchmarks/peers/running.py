"""Servers that run: started on one core, asked until they answer right, and ended with all of their processes."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from benchmarks.peers import wire
from benchmarks.peers.peer import CORE, Peer, Place
from benchmarks.peers.workload import Answers, Rows
from benchmarks.support.process_tree import cpu_ns, end, pss_kb, tree
from benchmarks.support.processes import pinned
from tests.support.triton.server import free_ports, remove_memory

START_TIMEOUT_S = 120.0
STOP_S = 10.0
POLL_S = 0.1
TOLERANCE = 1e-4
"""Servers sum up the rows of batches in different orders."""
CHECKED = 8


class PeerFailed(Exception):
    """A server does not start, does not answer, or answers wrong; the message is for the document."""


class RunningPeer:
    """A server whose answers are right."""

    def __init__(self, peer: Peer, place: Place, served: ModuleType) -> None:
        self.peer = peer
        self._place = place
        self._models = served
        self._process: subprocess.Popen[bytes] | None = None

    def port(self, protocol: str) -> int:
        """The port of `http` or `grpc`."""
        return self._place.http_port if protocol == "http" else self._place.grpc_port

    def served(self, model: str) -> Any:
        """The names and shapes of a model's input and output: a `Served`."""
        return self._models.ALL[model]

    def pids(self) -> list[int]:
        """All processes of the server."""
        return [] if self._process is None else tree(self._process.pid)

    def cpu_ns(self) -> int:
        """The processor time of all processes so far."""
        return cpu_ns(self.pids())

    def pss_mb(self) -> float:
        """The memory of all processes, shared pages counted once."""
        return sum(pss_kb(pid) for pid in self.pids()) / 1024

    def start(self) -> None:
        """Start all processes; raises PeerFailed where the program is not there."""
        command, variables, folder = self.peer.launch(self._place, self._models)
        with pinned(CORE), (self._place.scratch / "server.log").open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    command, env=variables, cwd=folder, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise PeerFailed(f"cannot be started: {error}") from error

    def end(self) -> None:
        """End all processes."""
        if self._process is not None:
            end(self._process, STOP_S)
        remove_memory(self._place.grpc_port)

    def check(self, requests: dict[str, Rows], right: dict[str, Answers], deadline: float) -> None:
        """Ask every model over every protocol for the first rows; raises PeerFailed."""
        for model in self._place.models:
            for protocol in ("http", "grpc") if self.peer.grpc else ("http",):
                self._check(model, protocol, requests[model][:CHECKED], right[model][:CHECKED], deadline)

    def _check(self, model: str, protocol: str, rows: Rows, right: Answers, deadline: float) -> None:
        for number in range(len(rows)):
            found = self._first_answer(model, protocol, rows[number : number + 1], deadline)
            if found.shape != (1, 10) or not np.allclose(found, right[number], atol=TOLERANCE):
                raise PeerFailed(f"{model} over {protocol}: row {number}: expected {right[number]}, got {found}")

    def _first_answer(self, model: str, protocol: str, rows: Rows, deadline: float) -> Answers:
        while True:
            try:
                return self._ask(model, protocol, rows)
            except (OSError, HTTPException, ValueError, InferenceServerException) as error:
                if time.monotonic() > deadline or self._ended():
                    raise PeerFailed(f"{model} over {protocol}: {error}") from error
            time.sleep(POLL_S)

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _ask(self, model: str, protocol: str, rows: Rows) -> Answers:
        served, port = self.served(model), self.port(protocol)
        if protocol == "grpc":
            headers = self.peer.grpc_headers(model)
            return wire.ask_v2_grpc(port, model, served.input, served.datatype, rows, headers)
        form = self.peer.form(model)
        if form is None:
            return wire.ask_v2(port, model, served.input, served.datatype, rows)
        return wire.ask(port, form, model, form.body(served.input, served.datatype, rows))


@contextmanager
def running(
    peer: Peer,
    models: tuple[str, ...],
    environment: Path,
    files: Path,
    scratch: Path,
    served: ModuleType,
    requests: dict[str, Rows],
    right: dict[str, Answers],
) -> Iterator[RunningPeer]:
    """Start a server, and end it with the block; raises PeerFailed with the end of its log."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    place = Place(scratch, files, environment, models, *free_ports(2))
    server = RunningPeer(peer, place, served)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.callback(server.end)
        server.start()
        try:
            server.check(requests, right, time.monotonic() + START_TIMEOUT_S)
        except PeerFailed as error:
            log = (scratch / "server.log").read_text(errors="replace")[-3000:]
            raise PeerFailed(f"{error}{os.linesep}{log}") from error
        yield server
