"""Collects the figures that the benchmarks report and prints them as one table at the end."""

from collections.abc import Callable
from pathlib import Path

import pytest

_FIGURES = pytest.StashKey[list[tuple[str, str, str]]]()

Report = Callable[[str, str, str], None]
"""report(figure, value, goal)"""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Add a line to the table at the end: a figure, its value and its goal."""
    figures = request.config.stash[_FIGURES]
    return lambda figure, value, goal: figures.append((figure, value, goal))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with a small network for the hot path and a wide one that gains from batching."""
    from examples.digits.build import build_repository  # only the benchmarks that need a repository build one
    from tests.support.models.onnx_models import save_mlp

    root = tmp_path_factory.mktemp("repository")
    build_repository(root)
    save_mlp(root / "mlp" / "1" / "model.onnx", [64, 128, 128, 10])
    return root


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash[_FIGURES]
    if not figures:
        return
    terminalreporter.section("figures")
    widths = [max(len(row[column]) for row in figures) for column in range(3)]
    for figure, value, goal in figures:
        terminalreporter.write_line(f"{figure:<{widths[0]}}  {value:>{widths[1]}}   {goal}")
