"""Progress with the time that is left, on standard error where that is a terminal, of what takes longer."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

DELAY_S = 2.0
"""Time after which progress is shown: what is done sooner needs none."""
_SAMPLE_S = 0.25


class Progress:
    """The progress of some work, in steps; all methods may be called from any thread, and do nothing without a bar."""

    def __init__(self, bar: "RichProgress | None" = None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("", total=None)

    def begin(self, text: str, total: float | None = None) -> None:
        """Say what is being done; `total` is the number of steps of all work, if it is known by now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text, total=total)  # None leaves the total as it is

    def advance(self, steps: float = 1) -> None:
        """Note that steps are done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, steps)

    def reach(self, steps: float) -> None:
        """Note how many steps are done in all."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=steps)


@contextmanager
def progress(total: float | None = None, *, in_bytes: bool = False) -> Iterator[Progress]:
    """Show the progress of a block that takes longer than `DELAY_S`, if standard error is a terminal.

    It disappears with the block. Lines that are printed meanwhile stand above it. Without a `total`, it moves until one
    is known.
    """
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=Console(stderr=True, highlight=False, markup=False, emoji=False),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # else its output would go to standard error
    )
    shown = Progress(bar)
    shown.begin("", total)
    starter = threading.Timer(DELAY_S, bar.start)
    starter.daemon = True
    starter.start()
    try:
        yield shown
    finally:
        starter.cancel()
        starter.join()  # it may be about to start the bar
        bar.stop()


@contextmanager
def sampled(text: str, state: Callable[[], tuple[float, float] | None], *, in_bytes: bool = False) -> Iterator[None]:
    """Show the progress that `state` gives, until it gives None or the block ends; otherwise as `progress`.

    It gives what is done and what there is to do, and is called from another thread.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        with progress(in_bytes=in_bytes) as shown:
            while (found := state()) is not None:
                done, total = found
                shown.begin(text, total or None)
                shown.reach(done)
                if ended.wait(_SAMPLE_S):
                    return

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
