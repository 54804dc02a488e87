"""The verdict of a run in words, and figures as text."""

from sluice.loadgen.records.bootstrap import MIN_BLOCK_S, MIN_BLOCKS
from sluice.loadgen.records.early_stopping import queries_needed
from sluice.loadgen.run.result import RunResult, Verdict

NO_INTERVALS = f"none; they take {MIN_BLOCKS * MIN_BLOCK_S:g} s after the warm-up"
_TITLES = {
    Verdict.MET: "Objective met",
    Verdict.MISSED: "Objective missed",
    Verdict.NOT_CONFIRMED: "Objective not confirmed",
    Verdict.INVALID: "Invalid run",
}


def title(result: RunResult) -> str:
    """The verdict in two or three words."""
    return _TITLES[result.verdict]


def explanation(result: RunResult) -> str:
    """The meaning of the verdict for this run, in a sentence or two."""
    if result.verdict is Verdict.INVALID:
        return f"The figures say nothing about the target: {'; '.join(result.invalid)}."
    score = result.score
    wanted = f"{result.config.percentile:g} % had to be"
    reached = f"{share(score.attainment)} of {count(score.queries)} queries were answered{_within(result)}; {wanted}."
    if result.verdict is not Verdict.NOT_CONFIRMED:
        return reached
    return (
        f"{reached} With {count(score.misses)} misses, MLPerf's early-stopping test needs "
        f"{count(queries_needed(score.misses, result.config.percentile))} queries."
    )


def _within(result: RunResult) -> str:
    slo_ms = result.config.slo_ms
    if slo_ms is not None:
        return f" within {milliseconds(slo_ms)}"
    return " within their objectives" if result.record.has_objectives else ""


def share(value: float) -> str:
    """A share as a percentage; one that is not all never looks like all."""
    percent = value * 100
    if 99.9 < percent < 100:
        return f"{min(percent, 99.999):.3f} %"
    if percent < 90:
        return f"{percent:.3g} %"
    return f"{percent:.4g} %" if percent < 99.9 else f"{percent:.1f} %".replace("100.0", "100")


def count(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float) -> str:
    """Queries a second."""
    return f"{count(value) if value >= 1000 else f'{value:.4g}'}/s"


def milliseconds(value: float) -> str:
    """A time with three or four digits that count."""
    if value >= 10_000:
        return f"{value / 1000:.3g} s"
    return f"{count(value) if value >= 1000 else f'{value:.3g}'} ms"
