"""Mooncake's traces (FAST '25): one JSON object a line, or the same fields as CSV."""

import msgspec

from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder

HEADING = ("timestamp_ms", "input_length", "output_length")
_MS_PER_S = 1e3


class _Request(msgspec.Struct):
    timestamp: float
    input_length: int


def read_mooncake(path: str) -> ArrivalTrace:
    """Read timestamp (milliseconds) and input_length (the size).

    Many timestamps of the public traces lie on a grid of 3 s, so they say little about bursts.
    """
    builder = TraceBuilder(path)
    with open_text(path) as file:
        is_json = file.read(1) == "{"
        file.seek(0)
        rows = TextRows(file, path)
        if is_json:
            decoder = msgspec.json.Decoder(_Request)
            for line in rows:
                try:
                    request = decoder.decode(line.lstrip("\ufeff"))
                except msgspec.DecodeError as error:
                    raise rows.error("an object with timestamp and input_length", str(error)) from error
                builder.add(request.timestamp / _MS_PER_S, size=max(request.input_length, -1))
        else:
            for row in CsvTable(rows, HEADING):
                builder.add(row.number("timestamp_ms") / _MS_PER_S, size=row.count("input_length"))
    return builder.trace().from_zero()
