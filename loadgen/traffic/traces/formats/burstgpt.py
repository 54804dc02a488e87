"""BurstGPT's traces (KDD '25): one row a request to a language model."""

from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder

HEADING = ("timestamp", "model", "request tokens")


def read_burstgpt(path: str) -> ArrivalTrace:
    """Read the columns Timestamp (seconds), Model, Request tokens (the size) and, where there, Log Type (the class)."""
    builder = TraceBuilder(path)
    with open_text(path) as file:
        for row in CsvTable(TextRows(file, path), HEADING):
            builder.add(row.time("timestamp"), row.text("model"), row.text("log type"), row.count("request tokens"))
    return builder.trace().from_zero()
