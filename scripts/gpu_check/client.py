"""Client side of the worker processes (worker.py)."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from daemon import Daemon, plain_environment

_WORKER = str(Path(__file__).with_name("worker.py"))
START_S = 90.0
EXIT_S = 8.0


class Client:
    """A worker process; it is killed when an answer does not arrive in time, after MPS has destroyed its contexts.

    It starts in the background, so that several may start at the same time.
    """

    def __init__(self, variables: Mapping[str, str], daemon: Daemon | None = None, kind: str = "torch") -> None:
        self._daemon = daemon
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process runs)
        self._process = subprocess.Popen(
            [sys.executable, _WORKER, kind],
            env=plain_environment() | dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.pid = self._process.pid
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @cached_property
    def hello(self) -> dict[str, Any]:
        """The first answer: the device as the worker sees it."""
        return self.answer(START_S)

    def send(self, op: str, **values: Any) -> None:
        """Send a request without waiting for the answer."""
        assert self._process.stdin is not None
        _ = self.hello  # the first answer
        try:
            print(json.dumps({"op": op, **values}), file=self._process.stdin, flush=True)
        except OSError:
            return  # the answer will report that the worker has ended

    def answer(self, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for the next answer, which is `ok` or has an `error` and its text."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            return {"ok": False, "error": "Timeout", "text": f"no answer within {timeout_s:g} s", "said": self._said()}
        if not line:
            self._answers.put("")
            status = self._process.wait(EXIT_S)
            return {"ok": False, "error": "Gone", "text": f"it ended with status {status}", "said": self._said()}
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, op: str, timeout_s: float = 60, **values: Any) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        self.send(op, **values)
        return self.answer(timeout_s)

    def close(self) -> int | None:
        """Let the worker end, or kill it when it does not; returns its exit status."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            return self._process.wait(EXIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
            return self._process.returncode

    def kill(self) -> None:
        """Have MPS destroy the worker's contexts, then kill it."""
        if self._process.poll() is None and self._daemon is not None:
            for server in self._daemon.servers():
                self._daemon.say(f"terminate_client {server} {self.pid}", 5)
        self._process.kill()
        self._process.wait(EXIT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-1500:].decode(errors="replace")


def together(clients: Sequence[Client], batch: int, seconds: float) -> list[dict[str, Any]]:
    """Run batches on all workers at the same time; their CUDA graphs are captured before."""
    for client in clients:
        client.ask("latency", batch=batch, seconds=0.2)
    start_at = time.time() + 0.2
    for client in clients:
        client.send("load", batch=batch, seconds=seconds, start_at=start_at)
    return [client.answer(seconds + 30) for client in clients]
