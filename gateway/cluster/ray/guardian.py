"""Runs a worker below its actor, and decides how it ends: `python -m …guardian HEAD SECONDS DIRECTORY COMMAND …`.

Ray ends all actors of a cluster about a minute after its head is gone. The workers go on then, since a gateway needs no
head to send them batches. So a worker is not ended with its actor, which holds the standard input of this process, but
by this process: at once if the head answers, since Ray has ended or moved the actor then, and else when the head
answers again, or after SECONDS. The worker's files in DIRECTORY are removed at the end.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

from sluice.gateway.cluster.ray.reach import answers
from sluice.mps.isolation.launch import launch_command

END_TIMEOUT_S = 40.0
"""The time for a worker to end when it is asked to, which is more than it takes to finish its batches."""
ASK_S = 2.0
"""The time between two questions whether the head answers."""

_STDIN, _STDOUT = 0, 1
_PIECE_BYTES = 4096


def main() -> int:
    """Run the command; returns its exit status, as a shell does."""
    head, seconds, directory, *command = sys.argv[1:]
    child = subprocess.Popen(
        [*launch_command(()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    watcher = _Watcher(child, head, float(seconds))
    while (status := child.poll()) is None:
        watcher.wait()
    watcher.drain()
    shutil.rmtree(directory, ignore_errors=True)
    return status if status >= 0 else 128 - status


class _Watcher:
    """Passes the worker's output on, and ends it when its actor has gone and the head lives or stays away."""

    def __init__(self, child: "subprocess.Popen[bytes]", head: str, without_head_s: float) -> None:
        assert child.stdout is not None
        self._child, self._output = child, child.stdout.fileno()
        self._head = head
        self._without_head_s = without_head_s
        self._exit = os.pidfd_open(child.pid)
        self._poll = select.poll()
        for fd in (self._output, self._exit, _STDIN):
            self._poll.register(fd, select.POLLIN)
        self._alone_since_s: float | None = None
        self._ending_since_s: float | None = None

    def wait(self) -> None:
        """Wait for something to happen, and see to it."""
        alone = self._alone_since_s is not None
        events = dict(self._poll.poll(ASK_S * 1000 if alone else None))
        if self._output in events:
            self._pass_on()
        if _STDIN in events and not os.read(_STDIN, _PIECE_BYTES):
            self._poll.unregister(_STDIN)
            self._alone_since_s = time.monotonic()
        if self._alone_since_s is not None:
            self._alone(self._alone_since_s)

    def drain(self) -> None:
        """Pass on the last output."""
        os.set_blocking(self._output, False)
        with suppress(BlockingIOError):
            while self._pass_on():
                pass

    def _alone(self, since_s: float) -> None:
        now_s = time.monotonic()
        if self._ending_since_s is not None:
            if now_s - self._ending_since_s > END_TIMEOUT_S:
                self._child.kill()
        elif answers(self._head) or now_s - since_s > self._without_head_s:
            self._ending_since_s = now_s
            self._child.terminate()

    def _pass_on(self) -> bool:
        piece = os.read(self._output, _PIECE_BYTES)
        if not piece:
            with suppress(KeyError):
                self._poll.unregister(self._output)
            return False
        with suppress(BrokenPipeError):  # the actor has gone
            os.write(_STDOUT, piece)
        return True


if __name__ == "__main__":
    sys.exit(main())
