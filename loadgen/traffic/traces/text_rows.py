"""Rows of text files, read one at a time with bounded lines; errors name the file and the line."""

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO

from sluice.models.errors import ConfigError

MAX_LINE = 1 << 20
"""Most characters of a line."""
_SHOWN = 60
_NOT_64_BITS = 1 << 63


@contextmanager
def open_text(path: str) -> Iterator[TextIO]:
    """Open a file as UTF-8 text, with or without a byte order mark; raises `ConfigError` that names the file."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            yield file
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = error.strerror or error if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {problem}") from error


class TextRows:
    """The lines of a file that are not empty; `line` is the number of the present one."""

    def __init__(self, file: TextIO, path: str) -> None:
        self._file = file
        self.path = path
        self.line = 0

    def __iter__(self) -> Iterator[str]:
        while text := self._file.readline(MAX_LINE + 1):
            self.line += 1
            if len(text) > MAX_LINE:
                raise self.error(f"at most {MAX_LINE} characters", "more")
            if text.strip():
                yield text

    def cells(self) -> Iterator[list[str]]:
        """The lines as rows of a CSV file."""
        return csv.reader(iter(self))

    def error(self, expected: str, got: str) -> ConfigError:
        """An error in the present line."""
        return ConfigError(f"{self.path}: line {self.line}: expected {expected}, got {got}")


class CsvTable:
    """The rows of a CSV file with a heading; columns are found by name, without regard to case.

    Raises `ConfigError` when the file lacks one of the `columns`.
    """

    def __init__(self, rows: TextRows, columns: Sequence[str]) -> None:
        self._rows = rows
        self._cells = rows.cells()
        self.heading = [name.strip().lower() for name in next(self._cells, [])]
        missing = [name for name in columns if name.lower() not in self.heading]
        if missing:
            raise rows.error(f"a heading with {', '.join(columns)}", f"no {missing[0]!r}")

    def __iter__(self) -> Iterator["CsvRow"]:
        columns = {name: index for index, name in enumerate(self.heading)}
        for cells in self._cells:
            yield CsvRow(self._rows, columns, cells)


class CsvRow:
    """A row of a table."""

    __slots__ = ("_cells", "_columns", "_rows")

    def __init__(self, rows: TextRows, columns: dict[str, int], cells: list[str]) -> None:
        self._rows = rows
        self._columns = columns
        self._cells = cells

    def text(self, name: str) -> str:
        """A cell; empty when the file has no such column."""
        index = self._columns.get(name)
        if index is None:
            return ""
        if index >= len(self._cells):
            raise self._rows.error(f"a value for {name}", "nothing")
        return self._cells[index].strip()

    def number(self, name: str, least: float = -math.inf) -> float:
        """A finite number of at least `least`."""
        return parse_number(self._rows, self.text(name), name, least)

    def count(self, name: str) -> int:
        """A whole number of at least 0, or -1 for an empty cell or one that the file lacks."""
        text = self.text(name)
        return parse_count(self._rows, text, name) if text else -1

    def whole(self, name: str) -> int:
        """A whole number of 64 bits."""
        text = self.text(name)
        try:
            number = int(text)
        except ValueError:
            number = _NOT_64_BITS
        if abs(number) >= _NOT_64_BITS:
            raise self._rows.error(f"a whole number for {name}", repr(text[:_SHOWN]))
        return number

    def time(self, name: str) -> float:
        """A number, or the seconds of an ISO 8601 timestamp (UTC unless it says otherwise)."""
        text = self.text(name)
        seconds = parse_time(text)
        if seconds is None:
            raise self._rows.error("a number or a timestamp", repr(text[:_SHOWN]))
        return seconds


def parse_number(rows: TextRows, text: str, name: str, least: float = -math.inf) -> float:
    """A finite number of at least `least`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise rows.error(f"a number{bound} for {name}", repr(text[:_SHOWN]))
    return number


def parse_count(rows: TextRows, text: str, name: str) -> int:
    """A whole number from 0 to 10^15."""
    try:
        number = float(text)
        if not (number.is_integer() and 0 <= number <= 1e15):
            raise ValueError
    except ValueError:
        raise rows.error(f"a whole number of at least 0 for {name}", repr(text[:_SHOWN])) from None
    return int(number)


def parse_time(text: str) -> float | None:
    """A finite number, or the seconds of a timestamp; None for anything else."""
    try:
        number = float(text)
    except ValueError:
        try:
            stamp = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    return number if math.isfinite(number) else None
