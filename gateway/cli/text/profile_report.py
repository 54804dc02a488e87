"""Profiles as text: tables, and plots of latency and throughput against the batch size."""

from collections.abc import Iterable

from sluice.gateway.cli.text.plot import plot
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry
from sluice.models.profiles.hardware import SIMULATED
from sluice.models.text_table import table_lines
from sluice.models.units import NS_PER_S, ns_to_ms

_COLUMNS = ("batch", "p50 ms", "p90 ms", "p99 ms", "rows/s", "runs")
_KIB, _MIB = 1 << 10, 1 << 20


def report(profile: ModelProfile, fingerprint: str, sha256: str) -> str:
    """Tables of all entries, with stale ones marked, and plots of the entries that are usable here."""
    parts = [_table(entry, _state(entry, fingerprint, sha256)) for entry in profile.entries]
    usable = [entry for entry in profile.entries if not _state(entry, fingerprint, sha256)]
    parts += [_latency_plot(entry) for entry in usable]
    if usable:
        parts.append(_throughput_plot(usable))
    return "\n\n".join(parts)


def summary(entry: ProfileEntry) -> str:
    """One line about an entry."""
    first, last = entry.cells[0], entry.cells[-1]
    medians = f"p50 {ns_to_ms(first.p50_ns):.3f} ms at batch {first.batch}"
    if last is not first:
        medians += f", {ns_to_ms(last.p50_ns):.3f} at {last.batch}"
    return f"{entry.label}: {medians}"


def _state(entry: ProfileEntry, fingerprint: str, sha256: str) -> str:
    if entry.fingerprint not in (fingerprint, SIMULATED):
        return "STALE, other hardware"
    return "" if entry.sha256 == sha256 else "STALE, another model file"


def _table(entry: ProfileEntry, state: str) -> str:
    source = "computed by a formula" if entry.source is FigureSource.SIMULATED else f"on {entry.fingerprint}"
    lines = [f"{entry.label}: {source}" + (f"  [{state}]" if state else "")]
    if entry.memory_rest_bytes is not None and entry.memory_row_bytes is not None:
        lines.append(f"memory {entry.memory_rest_bytes / _MIB:.1f} MiB + {entry.memory_row_bytes / _KIB:.1f} KiB a row")
    if entry.load_ns is not None and entry.warm_up_ns is not None:
        lines.append(f"load {ns_to_ms(entry.load_ns):.1f} ms, warm-up {ns_to_ms(entry.warm_up_ns):.1f} ms")
    cells = [
        (
            str(cell.batch),
            *(f"{ns_to_ms(quantile_ns):.3f}" for quantile_ns in (cell.p50_ns, cell.p90_ns, cell.p99_ns)),
            f"{_rate(cell.batch, cell.p50_ns):.0f}",
            str(cell.samples or "-"),
        )
        for cell in entry.cells
    ]
    lines += table_lines([_COLUMNS, *cells], left=0)
    lines += [f"warning: {warning}" for warning in entry.warnings]
    return "\n".join(lines)


def _latency_plot(entry: ProfileEntry) -> str:
    series = {
        "p50": [(cell.batch, ns_to_ms(cell.p50_ns)) for cell in entry.cells],
        "p99": [(cell.batch, ns_to_ms(cell.p99_ns)) for cell in entry.cells],
    }
    return plot(series, x_label="batch", y_label=f"{entry.label}: latency, ms", log_x=True, log_y=True, height=12)


def _throughput_plot(entries: Iterable[ProfileEntry]) -> str:
    series = {entry.label: [(cell.batch, _rate(cell.batch, cell.p50_ns)) for cell in entry.cells] for entry in entries}
    return plot(series, x_label="batch", y_label="throughput at the median, rows/s", log_x=True, log_y=True, height=12)


def _rate(rows: int, latency_ns: int) -> float:
    return rows * NS_PER_S / latency_ns
