"""The table of formats, and the format of a file by its heading."""

import enum
import os
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sluice.loadgen.traffic.traces.formats import (
    azure_functions_2019,
    azure_functions_2021,
    azure_llm,
    burstgpt,
    mooncake,
)
from sluice.loadgen.traffic.traces.formats.options import ImportOptions
from sluice.loadgen.traffic.traces.formats.per_second_counts import read_per_second_counts
from sluice.loadgen.traffic.traces.formats.times import read_times
from sluice.loadgen.traffic.traces.text_rows import MAX_LINE, open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace
from sluice.loadgen.traffic.traces.trace_file import COLUMNS, read_trace_file
from sluice.models.errors import ConfigError


class TraceFormat(enum.StrEnum):
    """A format of trace files; `trace` is the project's own, and `times` any CSV file with a column of times."""

    TRACE = "trace"
    AZURE_LLM = "azure-llm"
    AZURE_FUNCTIONS_2019 = "azure-functions-2019"
    AZURE_FUNCTIONS_2021 = "azure-functions-2021"
    MOONCAKE = "mooncake"
    BURSTGPT = "burstgpt"
    PER_SECOND_COUNTS = "per-second-counts"
    TIMES = "times"


_READERS: dict[TraceFormat, Callable[[str], ArrivalTrace]] = {
    TraceFormat.TRACE: read_trace_file,
    TraceFormat.AZURE_LLM: azure_llm.read_azure_llm,
    TraceFormat.AZURE_FUNCTIONS_2021: azure_functions_2021.read_azure_functions_2021,
    TraceFormat.MOONCAKE: mooncake.read_mooncake,
    TraceFormat.BURSTGPT: burstgpt.read_burstgpt,
    TraceFormat.TIMES: read_times,
}
_READERS_OF_COUNTS: dict[TraceFormat, Callable[[str, ImportOptions], ArrivalTrace]] = {
    TraceFormat.AZURE_FUNCTIONS_2019: azure_functions_2019.read_azure_functions_2019,
    TraceFormat.PER_SECOND_COUNTS: read_per_second_counts,
}
_HEADINGS = {
    TraceFormat.TRACE: COLUMNS[:1],
    TraceFormat.AZURE_LLM: azure_llm.HEADING,
    TraceFormat.AZURE_FUNCTIONS_2019: azure_functions_2019.HEADING,
    TraceFormat.AZURE_FUNCTIONS_2021: azure_functions_2021.HEADING,
    TraceFormat.MOONCAKE: mooncake.HEADING,
    TraceFormat.BURSTGPT: burstgpt.HEADING,
}


def format_of(path: str) -> TraceFormat:
    """The format of a file by its first line; counts a second look like any times, and have to be named."""
    with open_text(path) as file:
        first = file.readline(MAX_LINE).strip().lower()
    if first.startswith("{"):
        return TraceFormat.MOONCAKE
    heading = {name.strip() for name in first.split(",")}
    return next((each for each, names in _HEADINGS.items() if heading.issuperset(names)), TraceFormat.TIMES)


def import_trace(path: str, trace_format: TraceFormat, options: ImportOptions) -> ArrivalTrace:
    """Read a trace of a format; raises `ConfigError` with the file, the line and what was expected."""
    if (read_counts := _READERS_OF_COUNTS.get(trace_format)) is not None:
        return read_counts(path, options)  # only the arrivals that are kept are made
    trace = _READERS[trace_format](path)
    if options.keep == 1:
        return trace
    kept = np.flatnonzero(options.generator().random(len(trace)) < options.keep)
    return trace.take(kept, trace.t_s[kept])


def open_trace(path: str) -> ArrivalTrace:
    """Read a trace of any format that its heading tells; one that has not changed is read once."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ConfigError(f"--trace: {path}: cannot be read: {error.strerror or error}") from error
    return _opened(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=2)
def _opened(path: str, modified_ns: int, size: int) -> ArrivalTrace:
    return import_trace(path, format_of(path), ImportOptions())
