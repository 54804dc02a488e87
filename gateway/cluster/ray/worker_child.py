"""The process of `sluice worker` on a node: how it is started, where it listens, how it ends; without Ray."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sluice.gateway.cluster.ray.guardian import END_TIMEOUT_S
from sluice.mps.isolation.launch import module_environment

START_TIMEOUT_S = 120.0
"""The time for a worker to listen; it proves its partition before."""
PAUSE_S = 0.1

_WHOLE_PERCENT = 100
_TAIL_LINES, _LINE_BYTES = 5, 300
_KILLED = 128
"""Added to the number of a signal, the exit status of a process that has seen its child killed by that."""


class WorkerOrder(NamedTuple):
    """A worker to start: its `name`, the name and address of its node, its profile `kind`, and its whole `cores`.

    `head` is the address of Ray's head, and `without_head_s` the time for which the worker goes on when that is gone.

    `uuid` is the device of a kind on a GPU, else "", where `cores` do not count, and `pipes` the pipe directory of the
    node's MPS daemon, "" if it has none. `key` is the text of its key file, ""
    for none. `cache` is the directory of models, and `cache_mb` its bound (None: as the worker has them).
    """

    name: str
    node: str
    host: str
    head: str
    kind: str
    cores: int
    uuid: str = ""
    pipes: str = ""
    key: str = ""
    cache: str | None = None
    cache_mb: int | None = None
    options: tuple[str, ...] = ()
    without_head_s: float = 0.0


def command(order: WorkerOrder, directory: Path) -> list[str]:
    """The command line of a worker; its files, which are read by its user alone, are written to `directory`.

    Raises ValueError for a part of a GPU on a node without an MPS daemon.
    """
    words = [sys.executable, "-P", "-m", "sluice.gateway.cli.main", "worker", "--name", order.name]
    words += ["--node", order.node, "--listen", f"{order.host}:0"]
    words += ["--ready-file", str(directory / "ready.json")]
    if (partition := _partition(order)) is None:
        words += ["--cores", f"auto:{order.cores}"]
    else:
        (directory / "worker.yaml").write_text(json.dumps({"partition": partition}), encoding="utf-8")
        words += ["--config", str(directory / "worker.yaml")]
    if order.key:
        file = os.open(directory / "key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(order.key)
        words += ["--key-file", str(directory / "key")]
    if order.cache is not None:
        words += ["--cache", order.cache]
    if order.cache_mb is not None:
        words += ["--cache-mb", str(order.cache_mb)]
    return [*words, *order.options]


def _partition(order: WorkerOrder) -> dict[str, Any] | None:
    """The partition of a kind on a GPU, as in a configuration; None for cores.

    Raises ValueError for a part of a GPU without a daemon.
    """
    if order.kind.startswith("mig-"):
        return {"kind": "mig", "name": order.name, "uuid": order.uuid, "profile": order.kind.removeprefix("mig-")}
    if order.kind.startswith("mps-"):
        percent = int(order.kind.removeprefix("mps-"))
        partition = {"kind": "mps", "name": order.name, "uuid": order.uuid, "share_percent": percent}
        if order.pipes:
            return partition | {"pipes": order.pipes}
        if percent < _WHOLE_PERCENT:  # a daemon of its own would keep the other workers out
            raise ValueError(
                "a part of a GPU needs an MPS daemon that all workers of the GPU use; start nvidia-cuda-mps-control -d "
                "on the node, and then Ray with its CUDA_MPS_PIPE_DIRECTORY"
            )
        return partition
    return None


class WorkerChild:
    """A running worker, which ends with this process unless Ray's head is gone (see `guardian`).

    What it prints goes to standard error, by `say`, and its last lines are kept, to say why it ended.
    """

    def __init__(
        self,
        order: WorkerOrder,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        make_command: Callable[[WorkerOrder, Path], Sequence[str]] = command,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sluice-worker-")
        self._say = say
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "sluice.gateway.cluster.ray.guardian", order.head),
                    *(str(order.without_head_s), self._directory.name),
                    *make_command(order, Path(self._directory.name)),
                ],
                env=_child_environment() if environment is None else dict(environment),
                stdin=subprocess.PIPE,  # its end tells that this process has gone
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            self._directory.cleanup()
            raise
        self._reader = threading.Thread(target=self._keep_output, name=f"output-{order.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> tuple[str, str]:
        """Wait until it listens; returns its address, and "" or, if it does not, "" and the reason in a sentence."""
        ready, give_up_s = Path(self._directory.name) / "ready.json", time.monotonic() + timeout_s
        while not ready.exists():
            if (reason := self.ended()) is not None:
                return "", reason
            if time.monotonic() > give_up_s:
                self.end(0)
                return "", f"the worker did not listen within {timeout_s:g} s{self._output()}"
            time.sleep(PAUSE_S)
        return str(json.loads(ready.read_text(encoding="utf-8"))["url"]), ""

    def ended(self, timeout_s: float = 0) -> str | None:
        """Wait for its end for a time; returns why it ended, or None while it runs."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(PAUSE_S)
        self._clean_up()
        if status < 0 or status > _KILLED:
            number = -status if status < 0 else status - _KILLED
            return f"the worker was killed by {signal.Signals(number).name}{self._output()}"
        return f"the worker exited with status {status}{self._output()}"

    def end(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Have it finish its batches and end; it is killed with its children after `timeout_s`."""
        self._process.terminate()
        if self.ended(timeout_s) is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._clean_up()

    def _clean_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._directory.cleanup()

    def _output(self) -> str:
        return f"; its output: {' / '.join(self._tail)}" if self._tail else ""

    def _keep_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while line := stream.readline(_LINE_BYTES):
                if text := line.decode(errors="replace").strip():
                    self._tail.append(text)
                    self._say(text)


def _child_environment() -> dict[str, str]:
    """The environment of a worker, without Ray: it hides devices from actors, and its token is not for models."""
    return {
        name: value
        for name, value in module_environment().items()
        if name != "CUDA_VISIBLE_DEVICES" and not name.startswith("RAY_")
    }
