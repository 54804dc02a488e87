"""Any CSV file with a column of times."""

from sluice.loadgen.traffic.traces.text_rows import TextRows, open_text, parse_time
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder
from sluice.models.units import unit_of

_NS_PER_S = 1e9


def read_times(path: str) -> ArrivalTrace:
    """Read the first column whose heading contains "time", or without such a heading the first column.

    Times are ISO 8601 timestamps, or numbers in seconds unless the heading ends in another unit (`_ms`, `_us`).
    """
    builder = TraceBuilder(path)
    column, scale = 0, 1.0
    with open_text(path) as file:
        rows = TextRows(file, path)
        for number, row in enumerate(rows.cells()):
            time = parse_time(row[column]) if column < len(row) else None
            if time is not None:
                builder.add(time * scale)
            elif number == 0:
                column = next((index for index, name in enumerate(row) if "time" in name.lower()), 0)
                unit = unit_of(row[column].strip().lower())
                scale = unit.per_unit / _NS_PER_S if unit is not None and "ms" in unit.units else 1.0
            else:
                found = repr(row[column][:60]) if column < len(row) else "nothing"
                raise rows.error("a number or a timestamp", found)
    return builder.trace().from_zero()
