import io
import threading

import pytest

from sluice.loadgen.cli.progress import progress_line
from sluice.loadgen.records.progress import QueryCounts


class Terminal(io.StringIO):
    """Keeps what is written, and says when that is the progress of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "queries sent" in text:
            self.shown.set()
        return super().write(text)


def test_a_terminal_shows_the_queries_until_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sluice.loadgen.cli.progress._PERIOD_S", 0.001)
    with progress_line() as watch:
        watch(lambda: QueryCounts(7, 5))
        assert terminal.shown.wait(60)
    assert "\r\x1b[K0 s: 7 queries sent, 2 of them open" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_pipe_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with progress_line() as watch:
        watch(lambda: QueryCounts(7, 5))
    assert pipe.getvalue() == ""
