"""The signals of a server: handled from the first line of its process to the last."""

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sluice.models.processes import STOP_SIGNALS, UNUSED_SIGNALS

if TYPE_CHECKING:
    import asyncio  # imported later by what serves: it takes time

FORCED_END_S = 10.0
"""Time for a server to end after the second signal to stop; then its process ends, whatever it is doing."""


class SignalActions(NamedTuple):
    """The reactions of a running server to signals; all are called on its event loop."""

    stop: Callable[[], object]
    force: Callable[[], object]
    reload: Callable[[], object]
    reopen: Callable[[], object]
    ignored: Callable[[str], object]


class ServerSignals:
    """Handles all signals while its context is open, in the main thread; the handlers of before return at its end.

    The kernel drops signals to process 1 of a container that have no handler, so the context is opened at once. Until
    `unwind`, a signal to stop ends the process at once. Then, until `attach` and after `detach`, the first one ends the
    program as `sys.exit(0)` does, and the second one the process. SIGHUP means that the terminal was closed if the
    process had one which has gone.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._terminal: int | None = None
        self._stops = 0
        self._unwinds = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._actions: SignalActions | None = None

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not started by nohup
            self._terminal = next((fd for fd in (0, 1, 2) if os.isatty(fd)), None)
        handlers = {
            **dict.fromkeys(STOP_SIGNALS, self._stop),
            **dict.fromkeys(UNUSED_SIGNALS, self._ignore),
            signal.SIGHUP: self._hang_up,
            signal.SIGUSR1: self._reopen,
        }
        for number, handler in handlers.items():
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def unwind(self) -> None:
        """From now on, the program has something to undo when it ends.

        Otherwise nothing is raised: the import of a library in C++ would abort the process for an exception.
        """
        self._unwinds = True

    def attach(self, loop: "asyncio.AbstractEventLoop", actions: SignalActions) -> None:
        """Hand signals to the server that runs on the loop, at once if one has come already."""
        self._loop, self._actions = loop, actions
        self.unwind()
        if self._stops:
            actions.stop()

    def detach(self) -> None:
        """The server has ended."""
        self._loop = self._actions = None

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._stops += 1
        actions = self._actions
        if actions is None and not self._unwinds:
            os._exit(0)
        if actions is None and self._stops > 1:
            os._exit(1)
        if actions is None:
            sys.exit(0)
        if self._stops == 1:
            self._call(actions.stop)
        elif self._stops == 2:
            self._call(actions.force)
            # In case that the event loop is stuck. The handler may have interrupted a start of a `threading.Thread`,
            # whose lock it would wait for without end.
            _thread.start_new_thread(_end_late, ())

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        if self._terminal is not None and not os.isatty(self._terminal):
            self._stop(number, frame)
        elif self._actions is not None:
            self._call(self._actions.reload)

    def _reopen(self, number: int, _: FrameType | None) -> None:
        if self._actions is not None:
            self._call(self._actions.reopen)

    def _ignore(self, number: int, _: FrameType | None) -> None:
        if self._actions is not None:
            self._call(self._actions.ignored, _name(number))

    def _call(self, action: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None, "there are actions"
        self._loop.call_soon_threadsafe(action, *arguments)


def _end_late() -> None:
    time.sleep(FORCED_END_S)
    os._exit(1)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
