"""A pytest plugin that prints one line for each behaviour of Triton that tests replay: `make conformance`.

The mark `behaviour(source, text)` of a test names the test of Triton's quality assurance that it replays (or the other
client or protocol that it is about), and the behaviour; braces in the text are replaced by parameters of the test.
`triton` describes Triton's behaviour where Sluice differs on purpose. The transport is `through`, else the parameter
`client` or `protocol`, else plain sockets. Tests with the same source and text share a line.
"""

from collections import Counter
from typing import Any

import pytest

_KEY = "behaviour"
_CLIENTS = ("client", "protocol")
_RESULTS = ("failed", "skipped", "passed")


class _Line:
    """A behaviour with its transports and the results of its tests."""

    def __init__(self) -> None:
        self.through: dict[str, None] = {}
        self.ended: Counter[str] = Counter()

    @property
    def result(self) -> str:
        return next((result for result in _RESULTS if self.ended[result]), "not run")


class Table:
    """The table of behaviours, sorted by source."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], _Line] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Attach to every test its lines, so that its reports carry them."""
        for item in session.items:
            for mark in item.iter_markers(_KEY):
                source, text, through = _read(item, *mark.args, **mark.kwargs)
                line = self._lines.setdefault((source, text), _Line())
                line.through |= dict.fromkeys(through.split())
                item.user_properties.append((_KEY, (source, text)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the result of a test; an error in setup or teardown counts as a failure."""
        if report.when == "call" or report.outcome != "passed":
            for key, line in report.user_properties:
                if key == _KEY and isinstance(line, tuple):
                    self._lines[line].ended[report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table and the number of passing lines."""
        rows = [
            (source, text, " ".join(line.through), line.result)
            for (source, text), line in sorted(self._lines.items(), key=lambda each: each[0][0])
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        terminalreporter.section("behaviours of Triton")
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            terminalreporter.write_line("  ".join([*cells, row[3]]))
        results = Counter(row[3] for row in rows)
        skipped = f", {results['skipped']} skipped" if results["skipped"] else ""
        terminalreporter.write_line(f"{results['passed']} of {len(rows) - results['skipped']} passing{skipped}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the table."""
    config.pluginmanager.register(Table())


def _read(item: pytest.Item, source: str, text: str, *, through: str = "", triton: str = "") -> tuple[str, str, str]:
    """The source, the text and the transports of a mark."""
    parameters: dict[str, Any] = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    named = {name: getattr(value, "__name__", value) for name, value in parameters.items()}
    text = text.format_map(named)
    known = through or " ".join(str(named[name]) for name in _CLIENTS if name in named) or "socket"
    return source, f"{text} (Triton: {triton.format_map(named)})" if triton else text, known
