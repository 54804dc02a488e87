"""Schedules: the due time and the sample of each query, fixed before the run starts."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.loadgen.traffic.seeds import generator
from sluice.models.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Query k is due `due_ns[k]` nanoseconds after the start and carries sample `sample[k]`; both int64, (queries,)."""

    due_ns: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.due_ns)

    def head(self, queries: int) -> "Schedule":
        """The first `queries` queries."""
        return Schedule(self.due_ns[:queries], self.sample[:queries])

    @property
    def digest(self) -> str:
        """SHA-256 of the little-endian columns; equal digests mean the same samples at the same times."""
        content = hashlib.sha256(self.due_ns.astype("<i8").tobytes())
        content.update(self.sample.astype("<i8").tobytes())
        return content.hexdigest()


POISSON = Arrivals()


def server_schedule(
    rate: float,
    duration_s: float | None,
    queries: int | None,
    samples: int,
    *,
    each_once: bool,
    seed: int,
    arrivals: Arrivals = POISSON,
) -> Schedule:
    """Build the schedule of the Server scenario: samples drawn uniformly with replacement from `samples`.

    With `each_once` every sample is sent at most once, in random order, and their number bounds the run as `queries`
    does. Raises `ConfigError` as the arrivals do, and when no query falls into the duration.
    """
    if each_once:
        queries = min(samples, queries or samples)
    due_ns = arrivals.draw(rate, duration_s, queries, generator(seed, "arrivals"))
    if not len(due_ns):
        raise ConfigError(f"schedule: no query falls into {duration_s} s at {rate}/s; expected a longer --duration")
    rng = generator(seed, "samples")
    if each_once:
        return Schedule(due_ns, rng.permutation(samples)[: len(due_ns)].astype(np.int64))
    return Schedule(due_ns, rng.integers(samples, size=len(due_ns), dtype=np.int64))
