"""The project's own trace format: CSV with the columns `t_s[,model][,class][,size][,slo_ms]`."""

import csv
import math
from pathlib import Path

from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, TraceBuilder
from sluice.models.errors import ConfigError

COLUMNS = ("t_s", "model", "class", "size", "slo_ms")


def read_trace_file(path: str) -> ArrivalTrace:
    """Read a trace; raises `ConfigError` with the file and the line for anything else."""
    builder = TraceBuilder(path)
    with open_text(path) as file:
        rows = TextRows(file, path)
        table = CsvTable(rows, ("t_s",))
        unknown = [name for name in table.heading if name not in COLUMNS]
        if unknown or len(set(table.heading)) != len(table.heading):
            raise rows.error(f"the columns {', '.join(COLUMNS)}, each at most once", repr(",".join(table.heading)[:80]))
        for row in table:
            slo_ms = row.number("slo_ms", 1e-6) if row.text("slo_ms") else math.nan
            builder.add(row.number("t_s", 0), row.text("model"), row.text("class"), row.count("size"), slo_ms)
    return builder.trace()


def write_trace_file(trace: ArrivalTrace, path: str) -> None:
    """Write a trace, to the nanosecond; raises `ConfigError` when the file cannot be written."""
    columns = [[f"{seconds:.9f}".rstrip("0").rstrip(".") for seconds in trace.t_s.tolist()]]
    heading = ["t_s"]
    for name, labels in (("model", trace.model), ("class", trace.query_class)):
        if labels is not None:
            heading.append(name)
            columns.append([labels.names[index] for index in labels.index.tolist()])
    if trace.size is not None:
        heading.append("size")
        columns.append(["" if size < 0 else str(size) for size in trace.size.tolist()])
    if trace.slo_ms is not None:
        heading.append("slo_ms")
        columns.append(["" if math.isnan(slo_ms) else f"{slo_ms:g}" for slo_ms in trace.slo_ms.tolist()])
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(heading)
            writer.writerows(zip(*columns, strict=True))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
