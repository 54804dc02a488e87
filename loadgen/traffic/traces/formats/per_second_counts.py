"""Counts a second: whole numbers separated by white space or commas, on any number of lines."""

from array import array

import numpy as np

from sluice.loadgen.traffic.traces.formats.counts import spread_counts
from sluice.loadgen.traffic.traces.formats.options import ImportOptions
from sluice.loadgen.traffic.traces.text_rows import open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder
from sluice.models.errors import ConfigError

MAX_SECONDS = 40_000_000
_CHUNK = 1 << 16
_MOST_DIGITS = 12


def read_per_second_counts(path: str, options: ImportOptions) -> ArrivalTrace:
    """Read how many requests came in each of successive seconds; the file may be one long line."""
    counts = array("q")
    line = 1
    rest = ""
    with open_text(path) as file:
        while chunk := file.read(_CHUNK):
            text = rest + chunk.replace(",", " ")
            end = max(text.rfind(" "), text.rfind("\n")) + 1
            line = _append(counts, text[:end], path, line)
            rest = text[end:]
            if len(rest) > _MOST_DIGITS:
                break
        _append(counts, rest, path, line)
    try:
        times = spread_counts(np.array(counts, np.int64), 1.0, options, options.generator())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    builder = TraceBuilder(path)
    builder.add_many(times)
    return builder.trace()


def _append(counts: "array[int]", text: str, path: str, line: int) -> int:
    """Append the counts of a text, which may have several lines; returns the number of the last one."""
    for index, part in enumerate(text.split("\n")):
        line += index > 0
        for word in part.split():
            if not (word.isdecimal() and len(word) <= _MOST_DIGITS):
                raise ConfigError(
                    f"{path}: line {line}: expected a whole number of at least 0 for each second, got {word[:60]!r}"
                )
            if len(counts) == MAX_SECONDS:
                raise ConfigError(f"{path}: too long; expected at most {MAX_SECONDS} seconds")
            counts.append(int(word))
    return line
