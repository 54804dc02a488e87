"""`sluice replay`: checks that a journal leads to the same decisions again."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from sluice.batcher.drivers.journal import replay
from sluice.batcher.planner.live import LivePlanner
from sluice.models.errors import ConfigError

DIFFERENT = 1
"""Exit status when the replayed decisions differ from the recorded ones."""
MAX_LINE_BYTES = 64 << 20
"""The longest line of a journal that is read, which is far more than the spec of a large server takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_replay)
    parser.add_argument("journal", type=Path, metavar="JOURNAL", help="a file that `sluice serve --journal` wrote")


class _Lines:
    """The complete lines of a journal; `read` is their number. A last line without an end `is_cut`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE_BYTES:
                    raise ConfigError(f"journal line {self.read + 1}: expected at most {MAX_LINE_BYTES} bytes")
                if not self.read:
                    raise ConfigError("journal line 1: expected the scheduler's spec, the line is cut off")
                self.is_cut = True
                return
            self.read += 1
            yield line


def _replay(options: argparse.Namespace) -> int:
    try:
        with options.journal.open("rb") as file:
            lines = _Lines(file)
            difference = replay(lines, LivePlanner())
    except OSError as error:
        raise ConfigError(f"{options.journal}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{options.journal}: {error}") from error
    if difference is None:
        # The first line is the spec.
        cut = f"; line {lines.read + 1} is cut off, as by a full disk or a killed server" if lines.is_cut else ""
        print(f"{options.journal}: the same decisions in {lines.read - 1} steps{cut}")
        return 0
    print(f"{options.journal}: line {difference.line}: the decisions differ")
    print(f"recorded: {msgspec.json.encode(difference.step).decode()}")
    print(f"replayed: {msgspec.json.encode(difference.decisions).decode()}")
    return DIFFERENT
