"""Goodput under overload against the best there can be, in virtual time.

`python -m benchmarks.support.overload` prints the table, whole or in part; here each case has its worst rows.
"""

from typing import Any

import pytest

from benchmarks.conftest import Report
from benchmarks.support.overload import CASES, GOOD, REFUSED, TARDY, Measured, Row, measure, missed, table


def name(row: Row) -> str:
    return f"{row.objective:g} full batches, {row.factor:g} x peak, {row.late}, noise {row.noise:g}"


@pytest.mark.parametrize("case", CASES)
def test_goodput_under_overload(benchmark: Any, case: str, report: Report) -> None:
    """The worst rows of a case, and how many of its rows miss a goal."""

    def measure_all() -> dict[Row, Measured]:
        return {row: measure(row) for row in table() if row.case == case}

    rows = benchmark.pedantic(measure_all, rounds=1)
    slowest = min(rows, key=lambda row: rows[row].share)
    report(f"{case}: least goodput ({name(slowest)})", f"{rows[slowest].share:.1%}", f">= {GOOD:.0%} of the bound")
    tardiest = max(rows, key=lambda row: rows[row].tardy)
    report(f"{case}: most late ({name(tardiest)})", f"{rows[tardiest].tardy:.1%}", f"<= {TARDY:.0%} of the admitted")
    refusing = max((row for row in rows if row.factor < 1), key=lambda row: rows[row].refused)
    report(
        f"{case}: most refused below the peak ({name(refusing)})", f"{rows[refusing].refused:.1%}", f"<= {REFUSED:.0%}"
    )
    missing = sum(bool(missed(row, measured)) for row, measured in rows.items())
    report(f"{case}: rows that miss a goal", f"{missing} of {len(rows)}", "0")
