"""A Triton server that Sluice runs itself: it starts in its partition, and ends with all its children."""

import asyncio
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.triton.errors import ServerLost
from sluice.models.processes import TELEMETRY_OFF
from sluice.mps.isolation.launch import launch_command
from sluice.mps.isolation.pinning import worker_environment
from sluice.mps.partitions.partition import CpuPartition

STOP_TIMEOUT_S = 10.0
"""Time for a server to end when it is asked to; then it is killed."""
PAUSE_S = 0.1
"""Interval between two checks of a starting server."""

_HEAD_LINES, _TAIL_LINES, _LINE_BYTES = 2, 6, 300
_MARK = b"\n\0\n"
"""Marks the end of the output of a process that has ended; processes that left its group may hold the pipe open."""
_OUTPUT_TIMEOUT_S = 10.0
"""Time to read the output of a process that has ended; the reading thread only needs its turns."""
_KILL_TIMEOUT_S = 5.0


class TritonProcess:
    """The process of `settings`, which must have a command; it can be started again when it has ended.

    The first and the last lines of its output are kept, to say why it ended.
    """

    def __init__(self, settings: TritonSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._output = -1
        self._all_read = threading.Event()
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def pid(self) -> int:
        """The process, which leads a group of its own; 0 without one."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the process; there must be none."""
        assert self._process is None
        self._head, self._tail = [], deque(maxlen=_TAIL_LINES)
        settings = self._settings
        pinned = worker_environment(CpuPartition(settings.name, settings.cores)) if settings.cores else {}
        output, self._output = os.pipe()
        try:
            # A session of its own: a terminal's interrupt reaches the gateway alone, and all can be killed together.
            process = subprocess.Popen(
                [*launch_command(settings.cores), *settings.command],
                env=os.environ | TELEMETRY_OFF | pinned | settings.environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._pidfd = os.pidfd_open(process.pid)
            except OSError:
                with process:
                    process.kill()
                raise
        except BaseException:
            os.close(output)
            os.close(self._output)
            raise
        self._process = process
        self._all_read = threading.Event()
        # A thread, since the pipe must be read when there is no event loop yet.
        threading.Thread(
            target=self._keep_output, args=(output, self._all_read), name=f"triton-{settings.name}", daemon=True
        ).start()

    def ended(self) -> str | None:
        """The end of the process in a sentence, after which nothing is left of it; None while it runs."""
        if self._process is None:
            return "the process was ended"
        if not self._has_ended(0):
            return None
        self._kill_group()
        status = self._reap()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        lines = [*self._head, *self._tail]
        said = f"; its output: {' / '.join(lines)}" if lines else ""
        return f"the process {how}{said}"

    def terminate(self) -> None:
        """Ask the process to end."""
        if self._process is not None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def end(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process with its children, by force when it has not ended within `timeout_s`; blocks until then."""
        if self._process is not None:
            self.terminate()
            self._has_ended(timeout_s)
            self._kill_group()
            self._reap()

    async def wait_ready(self, check: Callable[[], Awaitable[None]]) -> None:
        """Start the process if it is not running, and wait until `check` does not raise ServerLost any more.

        Raises ServerLost when the process ends, or is not ready in time, in which case it is ended; and OSError when it
        cannot be started.
        """
        self.unwatch()  # `wait_ready` reads the end from here
        if self._process is None:
            self.start()
        deadline_s = time.monotonic() + self._settings.start_timeout_s
        while True:
            try:
                return await check()
            except ServerLost as error:
                if (reason := self.ended()) is not None:
                    raise ServerLost(reason) from error
                if time.monotonic() >= deadline_s:
                    # It had its time to start already, so it gets none to end.
                    await asyncio.to_thread(self.end, 0)
                    raise ServerLost(f"not ready within {self._settings.start_timeout_s:g} s: {error}") from error
            await asyncio.sleep(PAUSE_S)

    def watch(self, ended: Callable[[], None]) -> None:
        """Have `ended` called on the running loop once the process has ended, until `unwatch`."""
        asyncio.get_running_loop().add_reader(self._pidfd, ended)

    def unwatch(self) -> None:
        """Undo `watch`."""
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)

    def _keep_output(self, output: int, all_read: threading.Event) -> None:
        head, tail = self._head, self._tail
        with open(output, "rb") as stream:
            while line := stream.readline(_LINE_BYTES):
                if line == _MARK.lstrip():
                    all_read.set()
                elif text := line.decode(errors="replace").strip():
                    if len(head) < _HEAD_LINES:
                        head.append(text)
                    else:
                        tail.append(text)

    def _has_ended(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def _kill_group(self) -> None:
        """Kill the rest of the group; the process itself was not waited for, so the group is still its own."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> int:
        assert self._process is not None
        try:
            status = self._process.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # a driver holds it; the kernel ends it afterwards
            status = -signal.SIGKILL
        os.write(self._output, _MARK)
        os.close(self._output)
        self._all_read.wait(_OUTPUT_TIMEOUT_S)
        os.close(self._pidfd)
        self._process = None
        return status


@contextmanager
def launched(servers: Iterable[TritonSettings]) -> Iterator[Mapping[str, TritonProcess]]:
    """Start the servers that have a command and yield their processes by name; they end with the context."""
    processes = {server.name: TritonProcess(server) for server in servers if server.command}
    try:
        for process in processes.values():
            process.start()
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.end()
