"""The requests of a run: what each stream may send, prepared before the run, and which of them each query is."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sluice.loadgen.mixes.mix import MixStream, trace_streams
from sluice.loadgen.records.record import objective_ns
from sluice.loadgen.records.samples import Samples
from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.traffic.draws import Cancellation, DeadlineSpread, Numbers, draw_samples, draw_streams
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.traces.trace import ArrivalTrace
from sluice.models.errors import ConfigError
from sluice.models.spelling import did_you_mean

MAX_PREPARED_BYTES = 4 << 30
"""Upper bound on the tensors of all requests that are prepared before a run."""
MAX_LEVELS = 64
"""Upper bound on the different objectives of a trace; beyond, they are rounded to this number."""

OWN_OBJECTIVE = (None,)
"""The objectives of queries that have that of their stream."""


class RequestTable:
    """The requests that a run may send, by number.

    The samples of the streams lie one after the other, each stream's once for every one of the `objectives_ms`; None
    among them stands for the objective of the stream.
    """

    def __init__(
        self,
        streams: Sequence[MixStream],
        samples: Sequence[Samples],
        objectives_ms: Sequence[float | None] = OWN_OBJECTIVE,
    ) -> None:
        self.streams = tuple(streams)
        self.samples = tuple(samples)
        self._objectives_ms = tuple(objectives_ms)
        self.sizes: Numbers = np.array([len(each) for each in samples], np.int64)
        ends = np.cumsum(self.sizes * len(self._objectives_ms))
        self._starts: Numbers = ends - self.sizes * len(self._objectives_ms)
        self._slo_ns = np.array(
            [[_objective_ns(stream, slo_ms) for slo_ms in self._objectives_ms] for stream in streams], np.int64
        )
        self._count = int(ends[-1])

    def __len__(self) -> int:
        return self._count

    @property
    def is_labelled(self) -> bool:
        """True if the samples of any stream have labels."""
        return any(each.labels is not None for each in self.samples)

    @property
    def most_rows(self) -> int:
        """The most rows that a request carries."""
        return max(each.rows_per_query for each in self.samples)

    def numbers(self, stream: Numbers, objective: Numbers, sample: Numbers) -> Numbers:
        """The requests of these streams, objectives and samples, by their places in each."""
        return np.asarray(self._starts[stream] + objective * self.sizes[stream] + sample)

    def stream_of(self, requests: Numbers) -> Numbers:
        """The streams of requests."""
        return np.searchsorted(self._starts, requests, side="right") - 1

    def sample_of(self, requests: Numbers) -> Numbers:
        """The samples of requests, numbered in their streams."""
        stream = self.stream_of(requests)
        return np.asarray((requests - self._starts[stream]) % self.sizes[stream])

    def slo_ns(self, requests: Numbers) -> Numbers:
        """The objectives of requests, as values of `Record.slo_ns`; not to be changed where all are one value."""
        if (self._slo_ns == self._slo_ns[0, 0]).all():
            return np.broadcast_to(self._slo_ns[0, 0], len(requests))
        stream = self.stream_of(requests)
        return np.asarray(self._slo_ns[stream, (requests - self._starts[stream]) // self.sizes[stream]])

    def requests(self, used: Numbers) -> dict[int, TargetRequest]:
        """The requests that a schedule uses, by number; raises `ConfigError` beyond `MAX_PREPARED_BYTES`."""
        found: dict[int, TargetRequest] = {}
        total = 0
        numbers = np.unique(used)
        levels = (numbers - self._starts[self.stream_of(numbers)]) // self.sizes[self.stream_of(numbers)]
        parts = zip(numbers, self.stream_of(numbers), levels, self.sample_of(numbers), strict=True)
        for number, stream, level, sample in (map(int, part) for part in parts):
            settings = self.streams[stream]
            tensors = self.samples[stream].tensors(sample)
            total += sum(array.nbytes for array in tensors.values())
            if total > MAX_PREPARED_BYTES:
                raise ConfigError(
                    f"requests: the {len(numbers)} different ones of the run are too large to be prepared; expected at "
                    f"most {MAX_PREPARED_BYTES >> 30} GiB: fewer samples, or no --deadline-spread"
                )
            slo_ms = self._objectives_ms[level] or settings.slo_ms
            found[number] = TargetRequest(
                settings.model,
                tensors,
                slo_ms,
                settings.priority,
                settings.min_accuracy,
                settings.max_cost,
                settings.start_after_ms,
            )
        return found

    def expected(self, requests: Numbers) -> Numbers | None:
        """The expected classes of the rows of requests, (requests, most rows), -1 for none; None without any labels."""
        if not self.is_labelled:
            return None
        found = np.full((len(requests), self.most_rows), -1, np.int64)
        stream, sample = self.stream_of(requests), self.sample_of(requests)
        for number, samples in enumerate(self.samples):
            if samples.labels is not None:
                size = samples.rows_per_query
                padded = np.full(len(samples) * size, -1, np.int64)
                padded[: len(samples.labels)] = samples.labels
                own = stream == number
                found[own, :size] = padded.reshape(-1, size)[sample[own]]
        return found


def _objective_ns(stream: MixStream, slo_ms: float | None) -> int:
    """The objective of a query from when it is due: it counts from when the query may begin."""
    objective_ms = slo_ms or stream.slo_ms
    return objective_ns(None if objective_ms is None else objective_ms + stream.start_after_ms)


def assign(
    schedule: Schedule,
    streams: Sequence[MixStream],
    samples: Sequence[Samples],
    *,
    trace: ArrivalTrace | None,
    trace_slo_scale: float,
    spread: DeadlineSpread | None,
    cancellation: Cancellation | None,
    seed: int,
) -> tuple[RequestTable, Schedule]:
    """Give each query of a plain schedule its stream, a sample of that stream, its objective and its end.

    A query of a `trace` has the stream and the objective that the trace names, where it names any; the other streams
    are drawn by their shares. Without a mix, objectives and cancellations the schedule stays as it is.
    """
    n = len(schedule)
    objectives_ms, level = _objectives(n, trace, trace_slo_scale, spread, seed)
    table = RequestTable(streams, samples, objectives_ms)
    if len(streams) == 1:
        stream, sample = np.zeros(n, np.int64), schedule.sample
    else:
        stream = _streams(schedule, streams, trace, seed)
        sample = draw_samples(table.sizes[stream], seed)
    if len(streams) > 1 or level is not None:
        numbers = table.numbers(stream, np.zeros(n, np.int64) if level is None else level, sample)
        schedule = replace(schedule, sample=numbers, stream=stream.astype(np.uint16))
    if cancellation is not None:
        schedule = replace(schedule, cancel_ns=cancellation.draw(n, seed))
    return table, schedule


def _streams(schedule: Schedule, streams: Sequence[MixStream], trace: ArrivalTrace | None, seed: int) -> Numbers:
    labels = None if trace is None else trace_streams(trace)
    if labels is None:
        shares = np.array([stream.share for stream in streams])
        return draw_streams(shares, len(schedule), schedule.group, seed)
    places = {stream.name: number for number, stream in enumerate(streams)}
    if unknown := next((name for name in labels.names if name not in places), None):
        raise ConfigError(f"--mix: no stream {unknown!r}, which the trace names{did_you_mean(unknown, places)}")
    number = np.array([places[name] for name in labels.names], np.int64)
    # A trace that is shorter than the run starts over, and then so do its names.
    return np.asarray(number[np.resize(labels.index, len(schedule))])


def _objectives(
    queries: int, trace: ArrivalTrace | None, trace_slo_scale: float, spread: DeadlineSpread | None, seed: int
) -> tuple[Sequence[float | None], Numbers | None]:
    """The different objectives of queries, and the place of each query's; None when all have their stream's."""
    if trace is not None and trace.slo_ms is not None:
        if spread is not None:
            raise ConfigError("--deadline-spread: the trace has objectives of its own; expected one of the two")
        known = ~np.isnan(trace.slo_ms)
        values, index = _levels(trace.slo_ms[known] * trace_slo_scale)
        level = np.zeros(len(trace), np.int64)
        level[known] = 1 + index
        return (None, *values), np.resize(level, queries)
    if spread is not None:
        return spread.levels_ms, spread.draw(queries, seed)
    return OWN_OBJECTIVE, None


def _levels(slo_ms: npt.NDArray[np.float64]) -> tuple[list[float], Numbers]:
    """At most `MAX_LEVELS` different objectives; very many are rounded down to steps of equal ratio."""
    values, index = np.unique(slo_ms, return_inverse=True)
    if len(values) > MAX_LEVELS:
        steps = np.geomspace(values[0], values[-1], MAX_LEVELS)
        rounded = steps[np.searchsorted(steps, slo_ms * (1 + 1e-12), side="right") - 1]
        values, index = np.unique(rounded, return_inverse=True)
    return values.tolist(), index.astype(np.int64)
