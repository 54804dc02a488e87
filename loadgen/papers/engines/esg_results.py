"""Results of planners by cell of the experiment `esg`, as tables and as plots."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

import msgspec

from sluice.loadgen.papers.engines.esg_cluster import EsgCell, EsgRun, objective_ns
from sluice.loadgen.papers.engines.esg_search import search_us
from sluice.loadgen.papers.experiment import Plot
from sluice.loadgen.papers.nodes_and_links import APPLICATIONS
from sluice.models.units import NS_PER_MS

LEAST_HITS = 0.05
"""Planners with a smaller part in time are left out of the plot of costs: beside theirs, others could not be seen."""


class CellResult(msgspec.Struct, frozen=True):
    """The runs of a planner in a cell, one a seed."""

    runs: tuple[EsgRun, ...]

    @property
    def hits(self) -> float:
        """The part of all requests that was in time."""
        return sum(each.in_time for each in self.runs) / sum(each.requests for each in self.runs)

    @property
    def cost(self) -> float:
        """The cost of all batches, a thousand requests in time."""
        return 1000 * sum(each.cost for each in self.runs) / max(sum(each.in_time for each in self.runs), 1)

    @property
    def work_cost(self) -> float:
        """The cost of all batches, a second of work in time."""
        return sum(each.cost for each in self.runs) / max(sum(each.work_s for each in self.runs), 1e-9)

    @property
    def late(self) -> float:
        """The part of all requests that was answered late."""
        return sum(each.late for each in self.runs) / sum(each.requests for each in self.runs)

    @property
    def refused(self) -> float:
        """The part of all requests that was not answered."""
        return 1 - self.hits - self.late

    @property
    def quick_busy(self) -> float:
        """The part of the time for which instances of several slices ran batches."""
        return fmean(each.quick_busy for each in self.runs)

    @property
    def off_plan(self) -> float:
        """The part of the batches that were not as the plan had fixed them."""
        return fmean(each.off_plan for each in self.runs)

    def p95_ms(self, application: str) -> float:
        """The 95th percentile of the latency of an application."""
        found = sorted(ms for each in self.runs for ms in each.latencies_ms.get(application, ()))
        return found[len(found) * 95 // 100] if found else 0.0


class CellLimits(msgspec.Struct, frozen=True):
    """The parts of all requests that can be in time by the bounds and by the schedules of `esg_bounds`.

    `bound` is that of the runs, `endless` that of a run without end.
    """

    bound: float
    endless: float
    first_come: float
    cheapest_first: float


Results = dict[tuple[str, str], CellResult]
"""By cell and planner."""


def _planners(results: Results) -> tuple[str, ...]:
    return tuple(dict.fromkeys(planner for _, planner in results))


def results_table(results: Results, cells: Sequence[EsgCell], limits: Mapping[str, CellLimits]) -> str:
    """All cells with all planners, and with what can be in time."""
    planners = _planners(results)
    lines = [
        "Requests in time, and the cost of a thousand of them in dollars:\n",
        f"| cell | load | {' | '.join(planners)} |",
        "|---" * (len(planners) + 2) + "|",
    ]
    for cell in cells:
        found = (results[cell.name, name] for name in planners)
        figures = " | ".join(f"{each.hits:.1%}, {each.cost:.3f}" for each in found)
        lines.append(f"| {cell.name} | {cell.demand:.0%} | {figures} |")
    lines += [
        "\nRequests that can be in time, by the bound of the runs and of one without end, and by schedules of single "
        "rows with all times known, in the order of arrival and with the cheapest first:\n",
        "| cell | bound | bound without end | order of arrival | cheapest first | exact |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        limit, hits = limits[cell.name], results[cell.name, "exact"].hits
        parts = (limit.bound, limit.endless, limit.first_come, limit.cheapest_first, hits)
        lines.append(f"| {cell.name} | {' | '.join(f'{each:.1%}' for each in parts)} |")
    return "\n".join(lines) + "\n"


def search_table(searched: Mapping[float, CellResult]) -> str:
    """Results by the time that a planner may search, in milliseconds."""
    lines = ["| search of orion, ms | in time (strict-light) |", "|---|---|"]
    lines += [f"| {limit_ms:g} | {each.hits:.1%} |" for limit_ms, each in searched.items()]
    return "\n".join(lines) + "\n"


def cell_plots(results: Results, cells: Sequence[EsgCell], searched: Mapping[float, CellResult]) -> tuple[Plot, ...]:
    """The figures of the paper: requests in time and their cost, latencies of applications, and times of searches."""
    planners = _planners(results)
    names = tuple(cell.name for cell in cells)

    def bars(
        figure: Callable[[CellResult], float], least: float = 0.0
    ) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
        return tuple(
            (
                planner,
                tuple(
                    (float(at), figure(results[cell, planner]))
                    for at, cell in enumerate(names)
                    if results[cell, planner].hits >= least
                ),
            )
            for planner in planners
        )

    applications = tuple(APPLICATIONS)
    latencies = tuple(
        (name, tuple((float(at), results["relaxed-heavy", name].p95_ms(each)) for at, each in enumerate(applications)))
        for name in planners
    )
    relaxed = next(cell for cell in cells if cell.name == "relaxed-heavy")
    limits = tuple((float(at), objective_ns(each, relaxed) / NS_PER_MS) for at, each in enumerate(applications))
    searches = tuple((float(at), search_us(cell)) for at, cell in enumerate(cells))
    search = tuple((limit_ms, 100 * each.hits) for limit_ms, each in searched.items())
    by_cell = partial(Plot, x_label="cell", groups=names)
    return (
        by_cell(
            "hits",
            "Requests in time",
            y_label="in time, %",
            lines=bars(lambda each: 100 * each.hits),
            beside="the paper's hit rates by setting",
        ),
        by_cell(
            "cost",
            f"Cost of requests in time, where {LEAST_HITS:.0%} or more are",
            y_label="$ a thousand requests",
            lines=bars(lambda each: each.cost, LEAST_HITS),
            beside="the paper's cost by setting",
        ),
        Plot(
            "latency",
            "Latency by application, relaxed-heavy",
            "application",
            "95th percentile, ms",
            (*latencies, ("objective", limits)),
            groups=applications,
            beside="the paper's latency by application",
        ),
        by_cell(
            "planning",
            "Search of three stages by ESG",
            y_label="time of a search, µs",
            lines=(("time of a search, µs", searches),),
            beside="the paper's overhead of scheduling",
        ),
        Plot(
            "orion-search",
            "Requests in time by the search of Orion, strict-light",
            "time of a search, ms",
            "in time, %",
            (("in time, %", search),),
            log_x=True,
            beside="the paper's search time of Orion",
        ),
    )
