"""Azure's trace of function invocations of 2021 (Zhang et al., SOSP '21): one row an invocation."""

from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder

HEADING = ("func", "end_timestamp", "duration")


def read_azure_functions_2021(path: str) -> ArrivalTrace:
    """Read the columns func (the model), end_timestamp and duration, both in seconds.

    A call arrives when it starts, which is its end less its duration.
    """
    builder = TraceBuilder(path)
    with open_text(path) as file:
        for row in CsvTable(TextRows(file, path), HEADING):
            builder.add(row.time("end_timestamp") - row.number("duration", 0), row.text("func"))
    return builder.trace().from_zero()
