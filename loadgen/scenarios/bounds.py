"""The length of a run: at most to its bounds, and only to its minima where it has any."""

import math

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.processes.bounds import MAX_QUERIES
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


def has_minima(config: RunConfig) -> bool:
    """True for a run that ends once it has reached its minima."""
    return config.min_duration_s is not None or config.min_queries is not None


def unmet_minima(record: Record, config: RunConfig, group: int, lasted_ns: int) -> tuple[str, ...]:
    """The minima that a run has not reached, one sentence each; it lasted `lasted_ns` as its scenario counts it."""
    if config.each_once:
        return ()
    unmet = []
    if config.min_duration_s is not None and lasted_ns < config.min_duration_s * NS_PER_S:
        unmet.append(f"too short: {lasted_ns / NS_PER_S:.3f} s of --min-duration {config.min_duration_s:g}")
    queries = len(record) // group
    if config.min_queries is not None and queries < config.min_queries:
        unmet.append(f"too short: {queries} queries of --min-queries {config.min_queries}")
    return tuple(unmet)


def check_bounds(config: RunConfig, group: int = 1) -> None:
    """Refuse bounds that no run can keep; each query of the scenario is a `group` of queries of the record."""
    if group > MAX_QUERIES:
        raise ConfigError(f"--samples-per-query: expected at most {MAX_QUERIES}, got {group}")
    most = MAX_QUERIES // group
    for option, seconds in (("--duration", config.duration_s), ("--min-duration", config.min_duration_s)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ConfigError(f"{option}: expected a positive number of seconds, got {seconds:g}")
    for option, queries in (("--queries", config.queries), ("--min-queries", config.min_queries)):
        if queries is not None and not 1 <= queries <= most:
            raise ConfigError(f"{option}: expected 1 to {most}, got {queries}")
    if config.queries is not None and config.min_queries is not None and config.min_queries > config.queries:
        raise ConfigError(f"--min-queries: expected at most --queries ({config.queries}), got {config.min_queries}")
    shortest, longest = config.min_duration_s, config.duration_s
    if shortest is not None and longest is not None and shortest > longest:
        raise ConfigError(f"--min-duration: expected at most --duration ({longest:g} s), got {shortest:g} s")
