"""ESG beside other planners, on a cluster of 16 nodes: requests in time and their cost, by objective and load.

ESG (HPDC 2024) reports 46 to 80 points more requests in time than Orion and Aquatope, 36 to 61 more than INFless and
FaST-GShare, and no higher cost. Here all planners serve through the same scheduler, with its admission and places, on
the same arrivals. See `engines/esg_cluster.py` for the cluster, `engines/fluid_bound.py` for the bound, and
`engines/first_fit.py` for schedules beside it that are made with all times known.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from sluice.batcher.interface.planner_config import PlannerConfig, Replan, ServedPlanner
from sluice.loadgen.papers.engines.esg_bounds import (
    in_time_cheapest_first,
    in_time_first_come,
    long_run_bound,
    most_in_time_of,
)
from sluice.loadgen.papers.engines.esg_cluster import CELLS, EsgCell, play
from sluice.loadgen.papers.engines.esg_results import (
    CellLimits,
    CellResult,
    Results,
    cell_plots,
    results_table,
    search_table,
)
from sluice.loadgen.papers.engines.esg_search import BRUTE_FORCE_US, OPTIONS, planning_table, search_us
from sluice.loadgen.papers.experiment import (
    Effort,
    ExperimentFinding,
    ExperimentReport,
    GateVerdict,
    PaperExperiment,
    gated,
)

PAIRED = ("strict-light", "moderate-normal", "relaxed-heavy")
"""The cells that the paper shows."""
SECONDS, QUICK_SECONDS = 6, 4
PLANNERS = {
    each.value: PlannerConfig(each.value, Replan.ONCE if each in ("orion", "aquatope") else Replan.DISPATCH)
    for each in ServedPlanner
}
PUBLISHED_OFF_PLAN = {"orion": (9.6, 27.32, 51.68), "aquatope": (85.5, 59.85, 58.72)}
SEARCHES_MS = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
BELOW_HALF = 0.5


def run(effort: Effort) -> ExperimentReport:
    """All cells with all planners on the same arrivals; a quick run has three cells and one seed."""
    cells = [each for each in CELLS if each.name in PAIRED or not effort.quick]
    seeds = range(1, (1 if effort.quick else effort.seeds) + 1)
    seconds = QUICK_SECONDS if effort.quick else SECONDS
    results = {
        (cell.name, name): CellResult(tuple(play(cell, planner, seed, seconds) for seed in seeds))
        for cell in cells
        for name, planner in PLANNERS.items()
    }
    limits = {cell.name: _limits(cell, results[cell.name, "exact"], seeds, seconds) for cell in cells}
    searched = {
        limit_ms: CellResult(
            tuple(play(CELLS[0], PlannerConfig("orion", Replan.ONCE, 0, limit_ms), seed, seconds) for seed in seeds)
        )
        for limit_ms in SEARCHES_MS
    }
    findings = (
        *_against_esg(results, cells),
        _light(results, cells),
        *_under_bound(results, cells, limits),
        _above(results, cells, ("infless", "fast_gshare"), 0.3, "36 to 61 points"),
        _above(results, cells, ("orion", "aquatope"), 0.0, "46 to 80 points"),
        *(_off_plan(results, name) for name in PUBLISHED_OFF_PLAN),
        _search(cells),
    )
    plots = cell_plots(results, cells, searched)
    tables = (results_table(results, cells, limits), planning_table(cells), search_table(searched))
    return ExperimentReport(findings, tables, plots)


def _limits(cell: EsgCell, result: CellResult, seeds: Sequence[int], seconds: int) -> CellLimits:
    requests = sum(each.requests for each in result.runs)
    bound, first_come, cheapest_first = (
        sum(count(cell, seed, seconds) for seed in seeds) / requests
        for count in (most_in_time_of, in_time_first_come, in_time_cheapest_first)
    )
    return CellLimits(bound, long_run_bound(cell), first_come, cheapest_first)


def _worst(cells: Sequence[EsgCell], figure: Callable[[str], float]) -> tuple[float, str]:
    """The largest figure of all cells, with the name of its cell."""
    return max((figure(cell.name), cell.name) for cell in cells)


def _unserved(result: CellResult) -> str:
    return f"refuses {result.refused:.1%} and answers {result.late:.1%} late"


def _against_esg(results: Results, cells: Sequence[EsgCell]) -> tuple[ExperimentFinding, ...]:
    fewer, where = _worst(cells, lambda cell: results[cell, "esg"].hits - results[cell, "exact"].hits)
    dearer, there = _worst(cells, lambda cell: results[cell, "exact"].work_cost / results[cell, "esg"].work_cost - 1)
    each, at = _worst(cells, lambda cell: results[cell, "exact"].cost / results[cell, "esg"].cost - 1)
    exact, esg = results[there, "exact"], results[there, "esg"]
    more, less = results[at, "exact"], results[at, "esg"]
    dearer_runs = sum(
        mine.cost * its.in_time > its.cost * mine.in_time for mine, its in zip(more.runs, less.runs, strict=True)
    )
    return (
        gated(
            "in time with exact against esg, in the worst cell",
            f"{0.0 - 100 * fewer:+.1f} points ({where})",
            gate="no fewer in any cell",
            is_met=fewer <= 0,
            why=f"exact {_unserved(results[where, 'exact'])}, esg {_unserved(results[where, 'esg'])}",
        ),
        gated(
            "cost of the work in time with exact against esg, in the worst cell",
            f"{dearer:+.1%} ({there})",
            gate="no higher in any cell",
            is_met=dearer <= 0,
            why=f"exact has {100 * (exact.hits - esg.hits):+.1f} points in time against esg there, and instances of "
            f"several slices, which cost more for the same work, run for {exact.quick_busy:.0%} of the time with "
            f"exact and for {esg.quick_busy:.0%} with esg",
        ),
        gated(
            "cost of a request in time, long or short, with exact against esg, in the worst cell",
            f"{each:+.1%} ({at})",
            gate="no higher in any cell",
            is_met=each <= 0,
            why=f"requests with more stages cost more: exact has {100 * (more.hits - less.hits):+.1f} points in time "
            f"against esg there, and its work in time costs {more.work_cost / less.work_cost - 1:+.1%}. "
            f"A request is dearer with exact in {dearer_runs} of {len(more.runs)} runs on the same arrivals",
        ),
    )


def _light(results: Results, cells: Sequence[EsgCell]) -> ExperimentFinding:
    light = [cell for cell in cells if cell.demand < BELOW_HALF]
    missed, where = _worst(light, lambda cell: 1 - results[cell, "exact"].hits)
    return gated(
        "in time with exact below half of the load, in the worst cell",
        f"{1 - missed:.1%} ({where})",
        gate="at least 99 %",
        is_met=missed <= 0.01,
        why=f"exact {_unserved(results[where, 'exact'])}",
    )


def _under_bound(
    results: Results, cells: Sequence[EsgCell], limits: Mapping[str, CellLimits]
) -> tuple[ExperimentFinding, ...]:
    under, where = _worst(cells, lambda cell: limits[cell].bound - results[cell, "exact"].hits)
    less, there = _worst(cells, lambda cell: limits[cell].first_come - results[cell, "exact"].hits)
    worst = limits[where]
    return (
        gated(
            "in time with exact under the fluid bound, in the worst cell",
            f"{100 * under:.1f} points ({where})",
            gate="at most 3",
            is_met=under <= 0.03,
            why=f"the bound is no schedule. It divides requests among all instances, and has the time after the last "
            f"request for those before; in a run without end it is {worst.endless:.1%}. A schedule that is made with "
            f"all requests known, those first that cost least, has {worst.cheapest_first:.1%}: it refuses the "
            f"longest. Made in the order of arrival, it has {worst.first_come:.1%}, and exact, "
            f"which knows none before it comes, has {results[where, 'exact'].hits:.1%}",
        ),
        ExperimentFinding(
            "in time with exact against a schedule with all times known, in the order of arrival, in the worst cell",
            f"{0.0 - 100 * less:+.1f} points ({there})",
        ),
    )


def _above(
    results: Results, cells: Sequence[EsgCell], others: Sequence[str], least: float, published: str
) -> ExperimentFinding:
    esg, other = (
        fmean(results[cell.name, name].hits for cell in cells for name in names) for names in (["esg"], others)
    )
    return gated(
        f"in time with esg against {' and '.join(others)}, on average over cells",
        f"{100 * (esg - other):+.1f} points",
        published=published,
        gate=f"at least {100 * least:.0f} points more" if least else "more",
        is_met=esg - other >= least and esg > other,
        why=f"on average esg has {esg:.1%} in time, and the others have {other:.1%}",
    )


def _off_plan(results: Results, name: str) -> ExperimentFinding:
    return ExperimentFinding(
        f"batches that are not as {name} planned them, {', '.join(PAIRED)}",
        ", ".join(f"{results[cell, name].off_plan:.1%}" for cell in PAIRED),
        ", ".join(f"{each} %" for each in PUBLISHED_OFF_PLAN[name]),
    )


def _search(cells: Sequence[EsgCell]) -> ExperimentFinding:
    strict, relaxed = (
        fmean(search_us(cell) for cell in cells if cell.objective == objective) for objective in ("strict", "relaxed")
    )
    return ExperimentFinding(
        f"search of three stages with {OPTIONS} configurations each, strict and relaxed, at the published time a path",
        f"{strict:.0f} and {relaxed:.0f} µs; brute force {BRUTE_FORCE_US:.0f} µs",
        "less where strict; below 10 ms; brute force 7258 ms with 256 configurations",
        verdict=GateVerdict.SHOWN if strict <= relaxed else GateVerdict.DIFFERS,
        why="" if strict <= relaxed else "the cost blade cuts most where the objective is relaxed",
    )


EXPERIMENT = PaperExperiment(
    "esg",
    "six planners on 16 nodes of seven GPU slices, by objective and load",
    "ESG, HPDC 2024",
    given="nodes, slices and cores, the applications, objectives of 0.8, 1 and 1.2 times L, three loads, and planners",
    assumed=(
        "times of functions, gaps and prices as recalled, how times go with batches, slices and cores, fixed "
        "layouts of instances, batches that wait as long as objectives allow, models that are loaded, and "
        "transfers that take no time; since planners that refuse long requests seem cheap by request, cost is "
        "compared by the work in time as well, which was decided after the first results"
    ),
    run=run,
)
