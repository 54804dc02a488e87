"""`sluice top`: watches a running server in the terminal."""

import argparse
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sluice.gateway.cli.client.http import ServerAddress, add_server_arguments
from sluice.gateway.cli.client.now import Now, fetch_now
from sluice.models.errors import NotFoundError, ServingError

_WAIT_S = 0.1
"""Time between looks at the keyboard and at the size of the terminal."""
_LEAST_STEPS = 2
"""Steps of the history after which rates are known: a server begins to take them when somebody looks."""
_MOST_LOOKS = 5
_UP, _DOWN = ("\x1b[A", "\x1bOA", "k"), ("\x1b[B", "\x1bOB", "j")
_QUIT = ("q", "Q", "\x03", "\x04")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_top)
    add_server_arguments(parser)
    parser.add_argument("--pipeline", default="", metavar="NAME", help="the pipeline to show (default: the busiest)")
    parser.add_argument(
        "--once", action="store_true", help="print one frame and exit, as where the output is no terminal"
    )


def _top(options: argparse.Namespace) -> int:
    server = ServerAddress.of(options)
    try:
        first = fetch_now(server, options.pipeline)
    except NotFoundError as error:
        raise ServingError(f"{server.url}: this server does not say what it does now; expected Sluice 0.1") from error
    if options.once or not sys.stdout.isatty():
        from sluice.gateway.cli.text.top_view import frame_lines

        for line in frame_lines(_with_rates(server, options.pipeline, first)):
            print(line)
        return 0
    watch = _Watch(server, options.pipeline, first)
    watch.start()
    with suppress(KeyboardInterrupt):
        _show(watch)
    return 0


def _with_rates(server: ServerAddress, pipeline: str, now: Now) -> Now:
    """A document that has rates, where the first one has none since nobody has looked before."""
    for _ in range(_MOST_LOOKS):
        if now.pipeline is None or len(now.pipeline.history.good) >= _LEAST_STEPS:
            break
        time.sleep(now.server.tick_s)
        now = fetch_now(server, pipeline)
    return now


class _Watch(threading.Thread):
    """Asks the server for the document once a tick, in a thread, so that keys are answered meanwhile.

    `now` is the last document, `reason` why there is no newer one ("": there is), since `lost_s` of the clock, and
    `count` grows with every question.
    """

    def __init__(self, server: ServerAddress, pipeline: str, first: Now) -> None:
        super().__init__(daemon=True)
        self.now, self.reason, self.lost_s, self.count = first, "", 0.0, 0
        self._server, self._pipeline = server, pipeline
        self._asked = threading.Event()

    def choose(self, step: int) -> None:
        """Choose the next pipeline, or the one before."""
        names = [each.name for each in self.now.pipelines]
        if self.now.pipeline is None or not names:
            return
        at = names.index(self.now.pipeline.name) if self.now.pipeline.name in names else 0
        self._pipeline = names[max(0, min(at + step, len(names) - 1))]
        self._asked.set()

    def run(self) -> None:
        """Ask until the process ends."""
        while True:
            self._asked.wait(min(max(self.now.server.tick_s, _WAIT_S), 10.0))
            self._asked.clear()
            last = self.now.timeline.last if self.now.timeline is not None else None
            try:
                self.now = fetch_now(self._server, self._pipeline, None if self.reason else last)
                self.reason = ""
            except ServingError as error:
                if not self.reason:
                    self.lost_s = time.monotonic()
                self.reason = str(error).removeprefix(f"{self._server.url}: ")
            self.count += 1


def _show(watch: _Watch) -> None:
    """Show frames until a key to quit, or a signal."""
    from rich.console import Console
    from rich.live import Live

    from sluice.gateway.cli.text.top_view import Trouble, frame

    console = Console(highlight=False, markup=False, emoji=False)
    drawn: tuple[object, ...] = ()
    with (
        _signals_to_end() as has_signal,
        _keyboard() as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not has_signal():
            columns, rows = console.size
            if drawn != (drawn := (columns, rows, watch.count, watch.reason)):
                trouble = Trouble(watch.reason, time.monotonic() - watch.lost_s) if watch.reason else None
                live.update(frame(watch.now, columns, rows, trouble), refresh=True)
            keys = keyboard.read(_WAIT_S)
            if keys in _QUIT:
                return
            if keys in _UP or keys in _DOWN:
                watch.choose(-1 if keys in _UP else 1)


class _Keyboard:
    """The keys that are pressed; without a terminal on standard input, none."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def read(self, timeout_s: float) -> str:
        """The keys that come within a time, as the terminal sends them; "" for none."""
        if self._fd is None:
            time.sleep(timeout_s)
            return ""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return ""
        data = os.read(self._fd, 64)
        if not data:  # the terminal is gone
            self._fd = None
        return data.decode(errors="replace")


@contextmanager
def _keyboard() -> Iterator[_Keyboard]:
    """The keyboard of the terminal, without waiting for the end of a line and without printing what is typed."""
    if not sys.stdin.isatty():
        yield _Keyboard(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield _Keyboard(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _signals_to_end() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns True once a signal to end the process has come.

    The handlers only take note of it: an exception could be raised where others are swallowed, and would be lost.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
