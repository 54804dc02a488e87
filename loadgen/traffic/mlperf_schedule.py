"""The queries of MLPerf's LoadGen 6.0: for the same seeds the same times, loaded sets and samples, bit for bit.

The order in which LoadGen consumes random numbers was read in its source (mlcommons/inference, `loadgen/loadgen.cc`).
Equality holds for builds with libstdc++ 11 or later, such as the wheel on PyPI.

A *loaded set* is the part of the samples that is in memory at a time, int64 sample numbers in LoadGen's order. In the
MultiStream scenario it ends with a copy of its first `samples_per_query` - 1 entries, so that a query can start
anywhere.
"""

import enum
from collections.abc import Sequence

import msgspec
import numpy as np

from sluice.loadgen.traffic.mersenne import Integers, Mersenne
from sluice.loadgen.traffic.processes.bounds import MAX_QUERIES
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

_BLOCK = 131_072


class MlperfSeeds(msgspec.Struct, frozen=True):
    """The seeds of the loaded set, of its samples, and of the arrivals; the defaults are MLPerf's official ones."""

    qsl: int = 2085463073848966840
    sample_index: int = 2747215439041700203
    schedule: int = 16159082839903944936

    def shifted(self, by: int) -> "MlperfSeeds":
        """The seeds of other queries: `by` is added to each, within 64 bits."""
        return MlperfSeeds(*((seed + by) % (1 << 64) for seed in (self.qsl, self.sample_index, self.schedule)))


class SampleChoice(enum.StrEnum):
    """The samples of the loaded set that performance mode takes."""

    RANDOM = "random"
    """Any, uniformly and with replacement. Offline takes the set over and over."""
    UNIQUE = "unique"
    """Each once, in random order. Offline takes the set once."""
    SAME = "same"
    """One for all queries."""
    PERMUTATIONS = "permutations"
    """All equally often: the whole set in random order, over and over. MultiStream takes any, as with `RANDOM`."""


class MlperfRules(msgspec.Struct, frozen=True):
    """Settings that LoadGen's choice of samples depends on; the defaults are LoadGen's, with the official seeds.

    `min_queries` is the least number of queries, and `samples_per_query` is 1 except in the MultiStream scenario. A
    loaded set has at most `set_size` samples, and accuracy mode takes `accuracy_samples` in all; 0 stands for all that
    there are. `place` is the place in the loaded set that `SampleChoice.SAME` takes.
    """

    seeds: MlperfSeeds = MlperfSeeds()
    min_queries: int = 100
    samples_per_query: int = 1
    set_size: int = 0
    accuracy_samples: int = 0
    choice: SampleChoice = SampleChoice.RANDOM
    place: int = 0


def performance_set(samples: int, rules: MlperfRules) -> Integers:
    """The loaded set of performance mode: the first `set_size` of `samples` samples in random order."""
    size = min(rules.set_size or samples, samples)
    return _sets(size, size, rules)[0]


def accuracy_sets(samples: int, rules: MlperfRules) -> list[Integers]:
    """The loaded sets of accuracy mode: the samples in random order, in sets of `set_size` and one of the rest."""
    return _sets(min(rules.accuracy_samples or samples, samples), rules.set_size or samples, rules)


def server_times(rules: MlperfRules, loaded: Integers, rate: float, duration_s: float) -> Integers:
    """The due times of the Server scenario in performance mode, int64 nanoseconds, at a mean of `rate` a second.

    They reach up to the first one at or after `duration_s`, and are at least `min_queries`; whole sets with
    `SampleChoice.PERMUTATIONS`, and one set with `SampleChoice.UNIQUE`. Raises `ConfigError` for more than
    `MAX_QUERIES`.
    """
    if rules.choice is SampleChoice.UNIQUE:
        return _arrivals(rules, rate, 0, len(loaded), 1)
    unit = len(loaded) if rules.choice is SampleChoice.PERMUTATIONS else 1
    return _arrivals(rules, rate, round(duration_s * NS_PER_S), rules.min_queries, unit)


def server_samples(rules: MlperfRules, loaded: Integers, queries: int) -> Integers:
    """The samples of the Server scenario in performance mode, int64 (queries,)."""
    return _performance_samples(rules, loaded, queries, rules.min_queries)[:, 0]


def closed_loop_samples(rules: MlperfRules, loaded: Integers, queries: int) -> Integers:
    """The samples of SingleStream and MultiStream in performance mode, int64 (queries, samples_per_query).

    LoadGen plans twice the queries that it expects. More of them only continue the same sequence, so no expectation is
    needed here.
    """
    return _performance_samples(rules, loaded, queries, max(rules.min_queries, queries))


def offline_samples(rules: MlperfRules, loaded: Integers, samples: int) -> Integers:
    """The samples of the Offline scenario in performance mode, at least `samples`, int64 (samples,).

    They are the loaded set over and over: once with `SampleChoice.UNIQUE`, and whole sets with
    `SampleChoice.PERMUTATIONS`.
    """
    match rules.choice:
        case SampleChoice.RANDOM:
            return np.resize(loaded, samples)
        case SampleChoice.UNIQUE:
            return loaded
        case SampleChoice.SAME:
            return np.full(samples, loaded[rules.place])
        case SampleChoice.PERMUTATIONS:
            engine = _engine(rules)
            _skip_shuffles(engine, 2, len(loaded))
            return np.concatenate([engine.shuffle(loaded) for _ in range(-(-samples // len(loaded)))])


def accuracy_times(rules: MlperfRules, sets: Sequence[Integers], rate: float) -> Integers:
    """The due times of the Server scenario in accuracy mode, int64 nanoseconds: one for each sample of the sets.

    LoadGen begins a set, with the same times, when that before is answered. Here it begins when one more query of that
    set would be due.
    """
    times = _arrivals(rules, rate, 0, max(len(each) for each in sets) + 1, 1)
    starts = np.cumsum([0, *(times[len(each)] for each in sets[:-1])])
    return np.concatenate([start + times[: len(each)] for start, each in zip(starts, sets, strict=True)])


def accuracy_samples(rules: MlperfRules, loaded: Integers) -> Integers:
    """The samples of a loaded set in the order of accuracy mode, int64 (queries, samples_per_query).

    The last query of MultiStream ends with samples of the first ones, unless it is full without. The Offline scenario
    has the samples as they lie in the set.
    """
    size = _size(rules, loaded)
    return _queries(rules, loaded, _engine(rules).shuffle(np.arange(0, size, rules.samples_per_query)))


def _sets(samples: int, set_size: int, rules: MlperfRules) -> list[Integers]:
    order = Mersenne(rules.seeds.qsl).shuffle(np.arange(samples))
    sets = (order[start : start + set_size] for start in range(0, samples, set_size))
    return [np.resize(each, len(each) + rules.samples_per_query - 1) for each in sets]


def _arrivals(rules: MlperfRules, rate: float, end_ns: int, least: int, unit: int) -> Integers:
    """Times up to the first one at or after the end, and at least `least`; both are rounded up to a whole `unit`."""
    engine = Mersenne(rules.seeds.schedule)
    chunks = [np.zeros(1, np.int64)]
    drawn, last_ns = 1, 0
    while last_ns < end_ns or drawn < least + unit:
        if drawn > MAX_QUERIES:
            raise ConfigError(f"schedule: too long; expected at most {MAX_QUERIES} queries at {rate:g}/s")
        chunks.append(last_ns + np.cumsum(engine.exponential_ns(_BLOCK, rate)))
        drawn, last_ns = drawn + _BLOCK, int(chunks[-1][-1])
    times = np.concatenate(chunks)
    count = max(least, int(np.searchsorted(times, end_ns)) + 1)
    return times[: -(-count // unit) * unit]


def _performance_samples(rules: MlperfRules, loaded: Integers, queries: int, permuted: int) -> Integers:
    """The samples of queries; random permutations are made for `permuted` queries, and repeated after them."""
    size = _size(rules, loaded)
    if rules.choice is SampleChoice.SAME:
        return _queries(rules, loaded, np.full(queries, rules.place))
    engine = _engine(rules)
    places = engine.shuffle(np.arange(0, size, rules.samples_per_query))
    if rules.choice is SampleChoice.UNIQUE:
        return _queries(rules, loaded, np.resize(places, queries))
    if rules.choice is SampleChoice.PERMUTATIONS and rules.samples_per_query == 1:
        return _queries(rules, loaded, np.resize(_permutations(engine, size, -(-permuted // size)), queries))
    _skip_shuffles(engine, -(-rules.min_queries // len(loaded)), len(loaded))
    return _queries(rules, loaded, engine.below(np.full(queries, size)))


def _permutations(engine: Mersenne, size: int, count: int) -> Integers:
    """Permutations of the places in a set, each of which shuffles the one before."""
    places = np.arange(size)
    permutations = []
    for _ in range(count):
        places = engine.shuffle(places)
        permutations.append(places)
    return np.concatenate(permutations)


def _skip_shuffles(engine: Mersenne, count: int, size: int) -> None:
    """Draw the numbers of shuffles that LoadGen makes and does not use."""
    for _ in range(count):
        engine.shuffle_positions(size)


def _engine(rules: MlperfRules) -> Mersenne:
    return Mersenne(rules.seeds.sample_index)


def _size(rules: MlperfRules, loaded: Integers) -> int:
    """The number of places in a loaded set at which a query can start."""
    return len(loaded) - rules.samples_per_query + 1


def _queries(rules: MlperfRules, loaded: Integers, places: Integers) -> Integers:
    """The samples of queries that start at these places of the loaded set."""
    return np.asarray(loaded[places[:, np.newaxis] + np.arange(rules.samples_per_query)], np.int64)
