"""The progress of a run as one line on standard error, where that is a terminal."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sluice.loadgen.records.progress import QueryCounts, Watch, unwatched

_PERIOD_S = 1.0
_CLEAR = "\r\x1b[K"


@contextmanager
def progress_line() -> Iterator[Watch]:
    """Watch a run in the block: a line that changes once a second, and is gone after the block."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def watch(counts: Callable[[], QueryCounts]) -> None:
        threads.append(threading.Thread(target=_show, args=(counts, ended), daemon=True))
        threads[-1].start()

    try:
        yield watch
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        _write(_CLEAR)


def _show(counts: Callable[[], QueryCounts], ended: threading.Event) -> None:
    since_s = time.monotonic()
    while not ended.wait(_PERIOD_S):
        now = counts()
        seconds = time.monotonic() - since_s
        _write(f"{_CLEAR}{seconds:.0f} s: {now.issued} queries sent, {now.issued - now.ended} of them open")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
