"""Queries that arrive on their own: their times, within the bounds of a run."""

import numpy as np

from sluice.loadgen.scenarios.bounds import check_bounds, has_minima
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.processes.bounds import MAX_QUERIES, Times
from sluice.loadgen.traffic.seeds import generator
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


def arrival_times(config: RunConfig, most: int | None = None, group: int = 1) -> Times:
    """The arrivals of a run, at most `most`; where it has minima, the last one is the first that reaches them."""
    check_bounds(config, group)
    queries = config.queries if most is None else min(most, config.queries or most)
    if config.each_once or not has_minima(config):
        return _drawn(config, queries)
    limit = queries or MAX_QUERIES // group
    min_ns = round((config.min_duration_s or 0.0) * NS_PER_S)
    tried = max(config.min_queries or 1, 1 + int(config.rate * (config.min_duration_s or 0.0)))
    while True:
        tried = min(tried, limit)
        due_ns = _drawn(config, tried)
        if len(due_ns) < tried or tried == limit or due_ns[-1] >= min_ns:
            return due_ns[: max(config.min_queries or 1, int(np.searchsorted(due_ns, min_ns)) + 1)]
        tried *= 2


def _drawn(config: RunConfig, queries: int | None) -> Times:
    due_ns = config.arrivals.draw(config.rate, config.duration_s, queries, generator(config.seed, "arrivals"))
    if not len(due_ns):
        raise ConfigError(
            f"schedule: no query falls into {config.duration_s} s at {config.rate}/s; expected a longer --duration"
        )
    return due_ns
