"""Azure's traces of language model inference (Splitwise, ISCA '24): one row a request."""

from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder

HEADING = ("timestamp", "contexttokens", "generatedtokens")


def read_azure_llm(path: str) -> ArrivalTrace:
    """Read the columns TIMESTAMP, ContextTokens (the size) and GeneratedTokens."""
    builder = TraceBuilder(path)
    with open_text(path) as file:
        for row in CsvTable(TextRows(file, path), HEADING):
            builder.add(row.time("timestamp"), size=row.count("contexttokens"))
    return builder.trace().from_zero()
