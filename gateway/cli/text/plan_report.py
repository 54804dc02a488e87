"""The answer of `sluice plan` as text."""

from collections.abc import Iterable, Iterator

from sluice.gateway.cli.text.plot import Points, plot
from sluice.gateway.what_if.answer import (
    PER,
    Arithmetic,
    LimitingFactor,
    PlanAnswer,
    PlannedConfiguration,
    StageAnswer,
    TableSource,
    percent,
)
from sluice.models.text_table import table_lines

_COLUMNS = (
    "stage",
    "model",
    "partition",
    "batch",
    "rows",
    "share",
    "p50 ms",
    "p99 ms",
    "cost/1000",
    "busy",
)


_WHOLE, _HUGE = 1e4, 1e12
"""Rates in this range are printed as whole numbers."""


def report(answer: PlanAnswer, *, explain: bool = False) -> str:
    """The whole report: the plan, its alternatives and the limits."""
    parts = [_head(answer), _stages(answer)]
    if answer.infeasible is not None:
        parts.append(_marked(answer, _infeasible(answer)))
    parts.append(_marked(answer, _around(answer)))
    if len(answer.front) > 1:
        parts.append(_plot(answer))
    if explain:
        parts += [_arithmetic(answer, stage) for stage in answer.plan.stages]
        parts.append(_marked(answer, _sums(answer.plan)))
    return "\n\n".join(parts)


def _marked(answer: PlanAnswer, lines: Iterable[str]) -> str:
    """Lines of figures, each marked if they rest on simulated latencies."""
    mark = "  SIMULATED" if answer.simulated else ""
    return "\n".join(f"{line}{mark}" for line in lines)


def _head(answer: PlanAnswer) -> str:
    kinds = ", ".join(f"{count} x {kind}{_mark(answer, kind)}" for kind, count in answer.partitions.items())
    lines = [f"{answer.pipeline}: p99 within {answer.slo_ms:g} ms at {_rate(answer.rate)} requests/s on {kinds}"]
    lines += [f"assumed: {assumption}" for assumption in answer.assumptions]
    lines += [f"loaded on {name}: {_listed(models) or 'nothing'}" for name, models in answer.residency.items()]
    for source in TableSource:
        if used := [table for table in answer.tables if table.source is source]:
            lines.append(f"latencies {_source(source)}: {_listed(f'{each.model} on {each.kind}' for each in used)}")
    lines += [f"  {each.model} on {each.kind}: {note}" for each in answer.tables for note in each.notes]
    return "\n".join(lines)


def _source(source: TableSource) -> str:
    match source:
        case TableSource.MEASURED:
            return "measured"
        case TableSource.SIMULATED:
            return "SIMULATED (computed by a formula)"
        case _:
            return "timed now, not stored (`sluice profile` is more accurate)"


def _mark(answer: PlanAnswer, kind: str) -> str:
    simulated = any(each.source is TableSource.SIMULATED and each.kind == kind for each in answer.tables)
    return " SIMULATED" if simulated else ""


def _stages(answer: PlanAnswer) -> str:
    plan = answer.plan
    mark = "SIMULATED" if answer.simulated else ""
    total = ("all", "", mark, "", "", "", _ms(plan.p50_ms), _ms(plan.p99_ms), _cost(plan.cost_per_1000), "")
    return "\n".join(table_lines([_COLUMNS, *(_cells(stage) for stage in plan.stages), total], left=3))


def _cells(stage: StageAnswer) -> tuple[str, ...]:
    if not stage.model:
        return (stage.stage, "(combiner)", "", "", "", f"{stage.probability:.1%}", "", "", "", "")
    return (
        stage.stage,
        stage.model,
        _label(stage),
        str(stage.batch),
        str(stage.rows),
        f"{stage.probability:.1%}",
        _ms(stage.p50_ms),
        _ms(stage.p99_ms) if stage.counted else f"({_ms(stage.p99_ms)})",
        _cost(stage.cost_per_1000_rows * stage.probability),
        "too much" if stage.utilisation is None else percent(stage.utilisation),
    )


def _label(stage: StageAnswer) -> str:
    return f"{stage.kind} SIMULATED" if stage.simulated else stage.kind


def _infeasible(answer: PlanAnswer) -> list[str]:
    trouble = answer.infeasible
    assert trouble is not None
    lines = [f"INFEASIBLE: {trouble.reason}"]
    if trouble.excess_rate is not None:
        what = "these partitions" if answer.limited_by is LimitingFactor.CAPACITY else "this objective"
        lines.append(f"  {_rate(trouble.excess_rate)} requests/s too many for {what}")
    nearest = []
    if trouble.nearest_slo_ms is not None:
        nearest.append(f"an objective of {trouble.nearest_slo_ms:.3f} ms at this rate")
    if trouble.nearest_rate is not None:
        nearest.append(f"{_rate(trouble.nearest_rate)} requests/s at this objective")
    lines.append(f"  possible instead: {' or '.join(nearest)}" if nearest else "  no rate or objective is possible")
    if trouble.nearest_rate is None:
        lines.append("  not even a lone request meets this objective")
    return lines


def _around(answer: PlanAnswer) -> Iterator[str]:
    yield from _second(answer)
    bottleneck = answer.bottleneck
    stage, busy = f"stage '{bottleneck.stage}' ({bottleneck.model})", percent(bottleneck.utilisation)
    all_busy = percent(bottleneck.total_utilisation)
    yield (
        f"bottleneck: {stage} takes {busy} of the partitions' time with its best batches, "
        f"all stages {all_busy}; its capacity alone is {_rate(bottleneck.capacity)} rows/s"
    )
    if answer.highest_rate is not None:
        what = "the partitions' time" if answer.limited_by is LimitingFactor.CAPACITY else "the objective"
        yield (
            f"highest rate within {answer.slo_ms:g} ms: {_rate(answer.highest_rate)} requests/s, limited by {what}; "
            "the gateway's own capacity is not considered"
        )
    if answer.lowest_slo_ms is not None:
        yield f"lowest objective at {_rate(answer.rate)} requests/s: {answer.lowest_slo_ms:.3f} ms"


def _second(answer: PlanAnswer) -> Iterator[str]:
    least = answer.exact_cost_per_1000
    if answer.feasible and answer.planner != "exact" and least:
        yield f"{answer.planner} costs {answer.plan.cost_per_1000 / least - 1:.1%} more than the cheapest plan (exact)"
    second = answer.runner_up
    if second is not None:
        figures = f"{second.p99_ms:.3f} ms, {_cost(second.cost_per_1000)}"
        yield f"runner-up: {', '.join(second.stages)}: {figures}; {second.reason}"
    elif answer.feasible:
        yield "runner-up: none, every other configuration has the same figures"
    further = next((point for point in answer.front if point.p99_ms > answer.slo_ms), None)
    if answer.feasible and further is not None:
        yield f"cheaper from an objective of {further.p99_ms:.3f} ms on: {_cost(further.cost_per_1000)}"


def _plot(answer: PlanAnswer) -> str:
    mark = " SIMULATED" if answer.simulated else ""
    series: dict[str, Points] = {f"Pareto front{mark}": [(each.p99_ms, each.cost_per_1000) for each in answer.front]}
    if answer.runner_up is not None:
        series["runner-up"] = [(answer.runner_up.p99_ms, answer.runner_up.cost_per_1000)]
    if answer.plan.p99_ms is not None:
        series["plan"] = [(answer.plan.p99_ms, answer.plan.cost_per_1000)]
    return plot(series, x_label="p99, ms", y_label="cost of 1000 requests", log_x=True, height=12, steps=True)


def _arithmetic(answer: PlanAnswer, stage: StageAnswer) -> str:
    if not stage.model:
        return f"{stage.stage}: a combiner, which runs on no partition"
    head = f"{stage.stage}: {stage.model} on {_label(stage)}, batches of up to {stage.batch}"
    part = stage.arithmetic
    if part is None:
        return f"{head}\n  the arriving rows exceed the partitions' capacity"
    full, hand_off = part.full_ms + part.hand_off_ms, part.hand_off_ms
    rows = [
        ("rows", _rows(answer, stage, part)),
        (f"l({stage.batch})", f"{part.full_ms:.3f} + {hand_off:.3f} hand-off = {full:.3f} ms"),
        ("busy", _busy(stage, part, full)),
        ("p99", _p99(stage, part)),
        ("cost", _row_cost(stage, part)),
        ("budget", _budget(answer, stage, part)),
    ]
    return "\n".join([head, *(f"  {name:<7} {text}" for name, text in rows)])


def _rows(answer: PlanAnswer, stage: StageAnswer, part: Arithmetic) -> str:
    return (
        f"{_rate(answer.rate)} x {stage.probability:.4g} = {_rate(stage.rate)} per second; all uses of the model send "
        f"{_rate(part.kind_rate)} to this kind, on {part.servers:.4g} partitions"
    )


def _busy(stage: StageAnswer, part: Arithmetic, full_ms: float) -> str:
    per_second = f"{_rate(part.kind_rate)}/s x {full_ms:.3f} ms"
    return f"{per_second} / ({part.servers:.4g} x {stage.batch} rows) = {percent(stage.utilisation or 0.0)}"


def _p99(stage: StageAnswer, part: Arithmetic) -> str:
    waits = f"fill {part.fill99_ms:.3f}, queue {part.queue99_ms:.3f}, running batch {part.running99_ms:.3f}"
    time = f"l({part.rows99}) {part.compute99_ms + part.hand_off_ms:.3f}"
    beside = f" + parallel stages {part.beside99_ms:.3f}" if part.beside99_ms else ""
    counted = "" if stage.counted else "; not counted: too few requests reach it"
    return f"{time} + the longest of ({waits}){beside} = {_ms(stage.p99_ms)} ms{counted}"


def _row_cost(stage: StageAnswer, part: Arithmetic) -> str:
    row = stage.cost_per_1000_rows / PER
    return (
        f"{part.price_per_s:.4g}/s x {part.compute_ms:.3f} ms / {stage.rows} rows = {row:.4g} a row, "
        f"x {stage.probability:.4g} = {row * stage.probability:.4g}"
    )


def _budget(answer: PlanAnswer, stage: StageAnswer, part: Arithmetic) -> str:
    taken = (stage.p99_ms or 0.0) if stage.counted else 0.0
    left = f"{answer.slo_ms:.3f} - {part.begin_ms:.3f} - {taken:.3f} = {part.left_ms:.3f} ms"
    row = stage.cost_per_1000_rows / PER * stage.probability
    if part.rest_cost is None:
        return f"{left}; H: no time for the later stages"
    return f"{left}; H({part.left_ms:.3f}) = {part.rest_cost:.4g}; C + H = {row + part.rest_cost:.4g}"


def _sums(plan: PlannedConfiguration) -> Iterator[str]:
    critical = [f"{stage.stage} {_ms(stage.p99_ms)}" for stage in plan.stages if stage.critical]
    costs = [_cost(stage.cost_per_1000_rows * stage.probability) for stage in plan.stages if stage.model]
    yield f"critical path: {' + '.join(critical)} = {_ms(plan.p99_ms)} ms (stages are rarely all slow at once)"
    yield f"cost of 1000 requests: {' + '.join(costs)} = {_cost(plan.cost_per_1000)}"


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.3f}"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if _WHOLE <= rate < _HUGE else f"{rate:.4g}"


def _cost(cost: float) -> str:
    return f"{cost:.4g}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
