"""Queries that follow the answers to earlier ones."""

import math

import numpy as np

from sluice.loadgen.scenarios.bounds import check_bounds, has_minima
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.mlperf import is_mlperf
from sluice.loadgen.scenarios.sample_choice import accuracy_order, choose_samples
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

_FIRST_QUERIES = 1 << 17
"""Length of a schedule that repeats. It has room for most runs, and repeats seldom enough to be as good as random."""
_MLPERF_QUERIES = 1 << 20
"""The same where the samples are to be LoadGen's, with room for 10 minutes of queries of 0.6 ms."""


def follow_answers(config: RunConfig, samples: int, group: int = 1) -> Schedule:
    """A schedule of queries of `group` samples each, which are due at once."""
    check_bounds(config, group)
    if config.each_once:
        whole_set = len(accuracy_order(config, samples, group)) // group
        queries = min(whole_set, config.queries or whole_set)
    elif config.queries is not None:
        queries = config.queries
    elif config.duration_s is not None or has_minima(config):
        queries = max((_MLPERF_QUERIES if is_mlperf(config) else _FIRST_QUERIES) // group, 1)
    else:
        raise ConfigError("schedule: no end; expected --duration, --queries, --min-duration or --min-queries")
    sample = choose_samples(config, samples, queries, group)
    return Schedule(np.zeros(len(sample), np.int64), sample, group=group)


def closed_loop(config: RunConfig, outstanding: int, *, group: int = 1, from_issue: bool = True) -> Pacing:
    """The pacing of such queries, with at most `outstanding` of them open."""
    ends_early = has_minima(config) and not config.each_once
    return Pacing(
        outstanding * group,
        group,
        from_issue,
        repeats=config.queries is None and not config.each_once and not config.rate,
        min_ns=(config.min_duration_s or 0.0) * NS_PER_S if ends_early else math.inf,
        min_queries=(config.min_queries or 0) * group if ends_early else math.inf,
        max_ns=math.inf if config.duration_s is None else config.duration_s * NS_PER_S,
    )
