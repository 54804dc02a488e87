"""`sluice replay`: checks that a journal leads to the same decisions again."""

import argparse
from itertools import count
from pathlib import Path

import msgspec

from sluice.batcher.drivers.journal import replay
from sluice.batcher.planner.live import LivePlanner
from sluice.models.errors import ConfigError

DIFFERENT = 1
"""Exit status when the replayed decisions differ from the recorded ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_replay)
    parser.add_argument("journal", type=Path, metavar="JOURNAL", help="a file that `sluice serve --journal` wrote")


def _replay(options: argparse.Namespace) -> int:
    read = count()
    try:
        with options.journal.open("rb") as lines:
            difference = replay((line for line, _ in zip(lines, read, strict=False)), LivePlanner())
    except OSError as error:
        raise ConfigError(f"{options.journal}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{options.journal}: {error}") from error
    if difference is None:
        # The first line is the spec.
        print(f"{options.journal}: the same decisions in {next(read) - 1} steps")
        return 0
    print(f"{options.journal}: line {difference.line}: the decisions differ")
    print(f"recorded: {msgspec.json.encode(difference.step).decode()}")
    print(f"replayed: {msgspec.json.encode(difference.decisions).decode()}")
    return DIFFERENT
