"""Bounds and schedules of ESG's cluster: the requests that can be in time, in a run and in one without end."""

from collections import Counter
from collections.abc import Mapping
from itertools import product

import numpy as np

from sluice.loadgen.papers.engines.esg_cluster import (
    CORE_PRICE,
    FROM_NS,
    GAPS_MS,
    SIZES,
    SLICE_PRICE,
    EsgCell,
    arrivals,
    objective_ns,
    partitions,
    table_of,
)
from sluice.loadgen.papers.engines.first_fit import RequestPaths, TimedPath, in_time_by_first_fit
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


def in_time_first_come(cell: EsgCell, seed: int, seconds: int) -> int:
    """The requests of a run that count and are in time by `first_fit`, placed as they come."""
    known = _known(cell, seed, seconds)
    in_time = in_time_by_first_fit(known, Counter(map(_kind, partitions().values())))
    return sum(is_in_time for each, is_in_time in zip(known, in_time, strict=True) if each.came_ns >= FROM_NS)


def in_time_cheapest_first(cell: EsgCell, seed: int, seconds: int) -> int:
    """The same where those that cost least alone are placed first, and those that do not count are left out.

    For that, all requests have to be known before the first one comes.
    """
    counted = [each for each in _known(cell, seed, seconds) if each.came_ns >= FROM_NS and each.paths]
    counted.sort(key=lambda each: _cost(each.paths[0]))
    return sum(in_time_by_first_fit(counted, Counter(map(_kind, partitions().values()))))


def _known(cell: EsgCell, seed: int, seconds: int) -> list[RequestPaths]:
    """The requests of a run, each with its paths by ascending cost."""
    paths = {name: _paths(name, objective_ns(name, cell)) for name in APPLICATIONS}
    return [
        RequestPaths(came_ns, request.deadline_ns, paths[request.pipeline])
        for came_ns, request in arrivals(cell, seed, seconds)
    ]


def _paths(application: str, within_ns: int) -> list[TimedPath]:
    """The paths of a request that take no longer than a time, by ascending cost."""
    found = []
    for instances in product(dict.fromkeys(partitions().values()), repeat=len(APPLICATIONS[application])):
        stages = zip(APPLICATIONS[application], instances, strict=True)
        times_ns = tuple([table_of(name, *instance).latency_ns(1) for name, instance in stages])
        if sum(times_ns) <= within_ns:
            found.append(TimedPath(tuple(map(_kind, instances)), times_ns))
    return sorted(found, key=_cost)


def _kind(instance: tuple[int, int]) -> str:
    return f"{instance[0]}g+c{instance[1]}"


_PRICES = {_kind(each): each[0] * SLICE_PRICE + each[1] * CORE_PRICE for each in set(partitions().values())}
"""Prices of instances a second."""


def _cost(path: TimedPath) -> float:
    return sum(_PRICES[kind] * took_ns for kind, took_ns in zip(path.kinds, path.times_ns, strict=True))
