"""Bounds on the requests of ESG's cluster that can be in time: of a run, and of one without end."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from sluice.loadgen.papers.engines.esg_cluster import (
    FROM_NS,
    GAPS_MS,
    SIZES,
    EsgCell,
    arrivals,
    objective_ns,
    partitions,
    table_of,
)
from sluice.loadgen.papers.engines.fluid_bound import FlowingRequests, most_in_time
from sluice.loadgen.papers.nodes_and_links import APPLICATIONS, FUNCTIONS
from sluice.models.units import NS_PER_S


def most_in_time_of(cell: EsgCell, seed: int, seconds: int) -> float:
    """The bound of `fluid_bound.most_in_time` on the requests of a run that count."""
    counted = [request for came_ns, request in arrivals(cell, seed, seconds) if came_ns >= FROM_NS]
    counts = Counter(request.pipeline for request in counted)
    window_s = (max(request.deadline_ns for request in counted) - FROM_NS) / NS_PER_S
    return _most_in_time(cell, counts, window_s)


def long_run_bound(cell: EsgCell, seconds: int = 1000) -> float:
    """The same for requests that come for so long that the time after the last one does not count; as a part of all."""
    each = round(seconds * 1000 / (sum(GAPS_MS[cell.load]) / 2) / len(APPLICATIONS))
    return _most_in_time(cell, dict.fromkeys(APPLICATIONS, each), seconds) / each / len(APPLICATIONS)


def _most_in_time(cell: EsgCell, counts: Mapping[str, int], window_s: float) -> float:
    kinds = Counter(partitions().values())
    batch_s = {
        name: np.array([[table_of(name, *kind).latency_ns(size) / NS_PER_S for size in SIZES] for kind in kinds])
        for name in FUNCTIONS
    }
    flows = [
        FlowingRequests(counts[name], objective_ns(name, cell) / NS_PER_S, chain)
        for name, chain in APPLICATIONS.items()
    ]
    return most_in_time(flows, batch_s, SIZES, np.array([float(number * window_s) for number in kinds.values()]))
