"""Reports of a self-check, as text and as JSON."""

from collections.abc import Iterator

import msgspec

from sluice.loadgen.selfcheck.probe import OUTSTANDING
from sluice.loadgen.selfcheck.selfcheck import ClientSpeed, SelfCheck
from sluice.models.text_table import table_lines

_HEADER = ("", "kept/s", "late p50 ms", "late p99 ms", "CPU us/query", f"closed loop/s ({OUTSTANDING})", "CPU us/query")


def selfcheck_text(check: SelfCheck) -> str:
    """The report as lines of text."""
    return "\n".join(_lines(check)) + "\n"


def selfcheck_json(check: SelfCheck) -> bytes:
    """The report as a JSON object; times are in milliseconds unless their key names another unit."""
    content = {
        "schema_version": 1,
        "kind": "selfcheck",
        "fit": check.is_fit,
        "safe_rates": {speed.protocol: speed.safe_rate for speed in check.speeds},
        "check": check,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _lines(check: SelfCheck) -> Iterator[str]:
    clock = check.clock
    yield f"clock  {clock.source}, steps of {clock.step_ns} ns, {clock.read_ns:.0f} ns a reading"
    yield f"cores  {check.cores}" + ("; client and null server share it" if check.cores == 1 else "")
    yield from table_lines([_HEADER, *map(_row, check.speeds)], left=1)
    for speed in check.speeds:
        if speed.kept is None and speed.failed is not None:
            yield f"{speed.protocol}: {speed.failed.rate:.0f}/s not kept: {'; '.join(speed.failed.reasons)}"
    if check.is_fit:
        rates = ", ".join(f"{speed.safe_rate:.0f}/s over {speed.protocol}" for speed in check.speeds)
        yield f"Result: safe up to {rates} with one process on this machine as busy as it is now"
    else:
        unfit = ", ".join(speed.protocol for speed in check.speeds if speed.kept is None)
        yield f"Result: no rate that was tried was kept over {unfit}: runs on this machine measure the client"


def _row(speed: ClientSpeed) -> tuple[str, ...]:
    kept, closed = speed.kept, speed.closed_loop
    loop = (f"{closed.per_s:.0f}", f"{closed.cpu_us_per_query:.1f}")
    if kept is None or kept.lateness_ms is None:
        return (speed.protocol, "none", "", "", "", *loop)
    late = kept.lateness_ms
    figures = (f"{kept.rate:.0f}", f"{late.p50:.3f}", f"{late.p99:.3f}", f"{kept.cpu_us_per_query:.1f}")
    return (speed.protocol, *figures, *loop)
