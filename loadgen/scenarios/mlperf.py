"""`--arrivals mlperf`: the queries of MLPerf's LoadGen, from its seeds, in each of its scenarios."""

import msgspec
import numpy as np

from sluice.loadgen.scenarios.bounds import check_bounds, has_minima
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.traffic.arrivals import ArrivalProcess
from sluice.loadgen.traffic.mersenne import Integers
from sluice.loadgen.traffic.mlperf_schedule import (
    MlperfRules,
    accuracy_samples,
    accuracy_sets,
    accuracy_times,
    closed_loop_samples,
    offline_samples,
    performance_set,
    server_samples,
    server_times,
)
from sluice.loadgen.traffic.processes.bounds import ArrivalBounds
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


def is_mlperf(config: RunConfig) -> bool:
    """True for a run with the queries of LoadGen."""
    return config.arrivals.process is ArrivalProcess.MLPERF


def mlperf_times(config: RunConfig, samples: int) -> Integers:
    """The due times of the Server scenario, int64 nanoseconds.

    The duration is LoadGen's: the last query is the first one at or after it, and there are at least `min_queries`
    (100). With a minimum duration as well, no query is due at the duration or after it.
    """
    check_bounds(config)
    rules = _rules(config, 1)
    if config.each_once:
        ArrivalBounds(config.rate, None, samples)
        return accuracy_times(rules, accuracy_sets(samples, rules), config.rate)[: config.queries]
    least_s = config.min_duration_s if has_minima(config) else config.duration_s
    bounds = ArrivalBounds(config.rate, least_s, rules.min_queries if has_minima(config) else config.queries)
    if bounds.duration_s is None and bounds.queries is not None:
        rules = msgspec.structs.replace(rules, min_queries=bounds.queries)
    times = server_times(rules, _loaded(rules, samples), bounds.rate, least_s or 0.0)[: config.queries]
    if has_minima(config) and config.duration_s is not None:
        times = times[: int(np.searchsorted(times, round(config.duration_s * NS_PER_S)))]
    return times


def mlperf_samples(config: RunConfig, samples: int, queries: int, group: int) -> Integers:
    """The samples of `queries` queries of `group` samples each in performance mode, int64 (queries * group,)."""
    rules = _rules(config, group)
    loaded = _loaded(rules, samples)
    match config.scenario:
        case ScenarioName.SERVER:
            return server_samples(rules, loaded, queries)
        case ScenarioName.OFFLINE:
            return np.resize(offline_samples(rules, loaded, queries), queries)
        case _:
            return closed_loop_samples(rules, loaded, queries).reshape(-1)


def mlperf_accuracy_samples(config: RunConfig, samples: int, group: int) -> Integers:
    """The samples of accuracy mode in queries of `group` samples each, int64 (queries * group,)."""
    rules = _rules(config, group)
    sets = accuracy_sets(samples, rules)
    if config.scenario is not ScenarioName.OFFLINE:
        sets = [accuracy_samples(rules, each).reshape(-1) for each in sets]
    return np.concatenate(sets)


def _rules(config: RunConfig, group: int) -> MlperfRules:
    if config.scenario not in (
        ScenarioName.SERVER,
        ScenarioName.OFFLINE,
        ScenarioName.SINGLE_STREAM,
        ScenarioName.MULTI_STREAM,
    ):
        raise ConfigError("--arrivals mlperf: requires --scenario server, offline, single-stream or multi-stream")
    rules = config.mlperf
    least = rules.min_queries if config.min_queries is None else config.min_queries
    return msgspec.structs.replace(rules, seeds=config.mlperf_seeds, min_queries=least, samples_per_query=group)


def _loaded(rules: MlperfRules, samples: int) -> Integers:
    loaded = performance_set(samples, rules)
    places = len(loaded) - rules.samples_per_query + 1
    if rules.place >= places:
        raise ConfigError(f"performance_issue_same_index: expected at most {places - 1}, got {rules.place}")
    return loaded
