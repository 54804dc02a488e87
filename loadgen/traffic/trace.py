"""Traces: the times of recorded arrivals, read from a CSV file."""

import csv
import math
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from sluice.models.errors import ConfigError

MAX_TRACE = 2_000_000
"""Upper bound on the arrivals of a trace file."""


def read_trace(path: str) -> npt.NDArray[np.float64]:
    """Read the arrivals of a trace, ascending, in the file's own unit (seconds for ISO 8601 timestamps).

    The times are in the first column whose heading contains "time"; without such a heading, in the first column.
    Raises `ConfigError` for a file that cannot be read, a value that is not a time, or fewer than two distinct times.
    """
    if not path:
        raise ConfigError("--arrivals trace: requires --trace FILE")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            times = _read(csv.reader(file), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--trace: {path}: cannot be read: {error}") from error
    times.sort()
    if not times or times[0] == times[-1]:
        raise ConfigError(f"--trace: {path}: expected at least two distinct times, got {len(times)} rows")
    return np.array(times)


def _read(rows: Iterable[list[str]], path: str) -> list[float]:
    times: list[float] = []
    column = 0
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        time = _time(row[column]) if column < len(row) else None
        if time is not None:
            if len(times) == MAX_TRACE:
                raise ConfigError(f"--trace: {path}: too long; expected at most {MAX_TRACE} rows")
            times.append(time)
        elif number == 1:
            column = next((index for index, name in enumerate(row) if "time" in name.lower()), 0)
        else:
            found = repr(row[column]) if column < len(row) else "nothing"
            raise ConfigError(f"--trace: {path}: line {number}: expected a number or a timestamp, got {found}")
    return times


def _time(text: str) -> float | None:
    """A finite number, or the seconds of a timestamp (UTC unless it says otherwise); None for anything else."""
    try:
        number = float(text)
    except ValueError:
        try:
            stamp = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    return number if math.isfinite(number) else None
