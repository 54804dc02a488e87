"""A run as MLPerf's logs tell it: settings, times and answers, in LoadGen's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.mersenne import Integers

NO_LIMIT_NS = np.iinfo(np.int64).max
"""The limit on the latency where there is none: LoadGen has no run without one."""
SERVER, OFFLINE, SINGLE_STREAM, MULTI_STREAM = "Server", "Offline", "SingleStream", "MultiStream"


class LoggedSettings(msgspec.Struct, frozen=True):
    """LoadGen's settings of a run, by its names for them; durations in milliseconds, 0 for what is not limited.

    `target_qps` is 0 in the closed loops and the Offline scenario, which need no expected rate here.
    """

    samples_per_query: int = 1
    target_qps: float = 0.0
    target_latency_ns: int = 0
    target_latency_percentile: float = 0.99
    max_async_queries: int = 0
    min_duration_ms: int = 0
    max_duration_ms: int = 0
    min_query_count: int = 0
    max_query_count: int = 0
    min_sample_count: int = 0
    qsl_rng_seed: int = 0
    sample_index_rng_seed: int = 0
    schedule_rng_seed: int = 0
    accuracy_log_rng_seed: int = 0
    accuracy_log_probability: float = 0.0
    accuracy_log_sampling_target: int = 0
    performance_issue_unique: bool = False
    performance_issue_same: bool = False
    performance_issue_same_index: int = 0
    sample_concatenate_permutation: bool = False
    performance_sample_count: int = 0
    accuracy_sample_count: int = 0


@dataclass(frozen=True)
class LoggedRun:
    """A run of one of MLPerf's four scenarios, with every query, warm-up included, as LoadGen counts them.

    `loaded` has the sets of samples that were in memory one after the other. `start_ns` (when the latency of a sample
    begins) and `done_ns` have shape (samples,), int64 nanoseconds from the start of the run; `answered` says which
    samples had an answer. A sample without one counts as if it had lasted to the end of the run, which is the least
    that it can have taken, and longer than the limit on the latency: LoadGen, which knows no failed queries, would wait
    for it. `group` successive samples are a
    query. `faults` are reasons for which the run is invalid whatever its figures say, one sentence each, and `failures`
    counts the samples without an answer by their reason. `answers` maps the numbers of samples in the run to what is
    logged of their answers. `began_s` is the time of day, in seconds
    since 1970, or None for a simulated run.
    """

    system: str
    data_set: str
    scenario: str
    accuracy_mode: bool
    settings: LoggedSettings
    loaded: Sequence[Sequence[int]]
    samples: Integers
    start_ns: Integers
    done_ns: Integers
    answered: npt.NDArray[np.bool_]
    group: int = 1
    faults: Sequence[str] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[int, bytes] = field(default_factory=dict)
    began_s: float | None = None

    @property
    def latency_ns(self) -> Integers:
        """The latency of every sample; shape (samples,)."""
        limit_ns = self.settings.target_latency_ns
        too_long_ns = 0 if limit_ns == NO_LIMIT_NS else limit_ns + 1
        missing_ns = np.maximum(self.end_ns - self.start_ns, too_long_ns)
        return np.asarray(np.where(self.answered, self.done_ns - self.start_ns, missing_ns), np.int64)

    @property
    def query_latency_ns(self) -> Integers:
        """The latency of every query, which is that of its slowest sample; shape (queries,)."""
        firsts = np.arange(0, len(self.samples), self.group)
        return np.asarray(np.maximum.reduceat(self.latency_ns, firsts), np.int64)

    @property
    def end_ns(self) -> int:
        """The end of the last sample."""
        return int(self.done_ns.max())

    @property
    def queries(self) -> int:
        """Number of queries."""
        return -(-len(self.samples) // self.group)

    @property
    def unanswered(self) -> int:
        """Number of samples without an answer."""
        return int(len(self.samples) - self.answered.sum())
