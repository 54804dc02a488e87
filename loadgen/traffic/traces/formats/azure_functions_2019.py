"""Azure's trace of function invocations of 2019 (Shahrad et al., ATC '20): counts a minute, one row a function."""

import numpy as np

from sluice.loadgen.traffic.traces.formats.counts import spread_counts
from sluice.loadgen.traffic.traces.formats.options import ImportOptions
from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text, parse_count
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder
from sluice.models.errors import ConfigError

HEADING = ("hashowner", "hashapp", "hashfunction", "trigger", "1")
_MINUTE_S = 60.0
_MAX_MINUTES = 1440


def read_azure_functions_2019(path: str, options: ImportOptions) -> ArrivalTrace:
    """Read the columns HashFunction (the model), Trigger (the class) and 1 to at most 1440 (calls in that minute)."""
    builder = TraceBuilder(path)
    rng = options.generator()
    with open_text(path) as file:
        rows = TextRows(file, path)
        table = CsvTable(rows, HEADING)
        minutes = [name for name in table.heading if name.isdigit()]
        if minutes != [str(number) for number in range(1, len(minutes) + 1)] or len(minutes) > _MAX_MINUTES:
            raise rows.error(f"minutes from 1 to at most {_MAX_MINUTES} in the heading", f"{', '.join(minutes)[:60]}")
        for row in table:
            counts = np.array([parse_count(rows, row.text(minute), f"minute {minute}") for minute in minutes])
            try:
                times = spread_counts(counts, _MINUTE_S, options, rng)
            except ConfigError as error:
                raise ConfigError(f"{path}: line {rows.line}: {error}") from error
            builder.add_many(times, row.text("hashfunction"), row.text("trigger"))
    return builder.trace()
