"""Differences of the counters of /metrics: over the last seconds, and a history of one-second steps.

Everything here is pure: the time is passed in. A sample of many pipelines is made in slices, between which the event
loop may do other work.
"""

from collections import deque
from collections.abc import Collection, Sequence
from operator import add, sub
from typing import NamedTuple

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.meters import DURATION_BOUNDS_NS, Meters, PipelineMeter
from sluice.gateway.overview.history import History
from sluice.gateway.overview.pieces import Slices, rounded
from sluice.models.units import NS_PER_S, ns_to_ms

WINDOW_STEPS = 10
"""Steps of a second that rates and quantiles are from."""
MAX_HISTORIES = 64
"""Pipelines that have a history at a time."""

_OUTCOMES = tuple(Outcome)
_LAST_OUTCOME = len(_OUTCOMES)
_LAST_BUCKET = _LAST_OUTCOME + len(DURATION_BOUNDS_NS) + 1
_GOOD, _LATE = _OUTCOMES.index(Outcome.COMPLETED), _OUTCOMES.index(Outcome.COMPLETED_LATE)
_CANCELLED = _OUTCOMES.index(Outcome.CANCELLED_CLIENT)
_FAILED = tuple(index for index, each in enumerate(_OUTCOMES) if each.startswith("failed_"))
_REFUSED = tuple(index for index, each in enumerate(_OUTCOMES) if each.startswith(("rejected_", "evicted_")))


class EndedRequests(NamedTuple):
    """Requests that ended within some time: in time, late, refused or evicted, failed, and cancelled."""

    good: int
    late: int
    refused: int
    failed: int
    cancelled: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    @property
    def in_time(self) -> float | None:
        """The share of requests completed within their objective, cancelled ones left out, as in the metrics."""
        counted = self.total - self.cancelled
        return self.good / counted if counted else None


def quantile_ns(buckets: Sequence[int], share: float, bounds: Sequence[int] = DURATION_BOUNDS_NS) -> float | None:
    """A quantile from the counts of a histogram, as PromQL's `histogram_quantile`; None without any.

    `buckets` are the counts up to each of the `bounds`, and above the last. The quantile is interpolated linearly
    inside its bucket; above the last bound, it is that bound.
    """
    rank = share * sum(buckets)
    if not rank:
        return None
    below = 0
    for index, count in enumerate(buckets):
        if count and below + count >= rank:
            if index == len(bounds):
                break
            low = bounds[index - 1] if index else 0
            return low + (bounds[index] - low) * (rank - below) / count
        below += count
    return bounds[-1]


class Window:
    """The sums of the last steps of one pipeline, or of all."""

    __slots__ = ("_steps", "cost", "requests", "sums")

    def __init__(self, width: int) -> None:
        self.sums = [0] * width
        self.cost = 0.0
        self.requests = 0
        """The requests that ended."""
        self._steps: deque[tuple[int, list[int], float]] = deque()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, step: int, counts: list[int], cost: float) -> None:
        """Add what came in a step."""
        self._steps.append((step, counts, cost))
        self.sums = list(map(add, self.sums, counts))
        self.cost += cost
        self.requests += sum(counts[:_LAST_OUTCOME])

    def expire(self, step: int) -> None:
        """Drop the steps that are older than the window which ends with a step."""
        steps = self._steps
        while steps and steps[0][0] <= step - WINDOW_STEPS:
            _, counts, cost = steps.popleft()
            self.sums = list(map(sub, self.sums, counts))
            self.cost -= cost
            self.requests -= sum(counts[:_LAST_OUTCOME])
        if not steps:
            self.cost = 0.0

    @property
    def ended(self) -> EndedRequests:
        """The requests that ended, by how they ended."""
        return _ended(self.sums)

    @property
    def stage_rows(self) -> list[int]:
        """The rows that each stage has run; empty for all pipelines together."""
        return self.sums[_LAST_BUCKET:]

    @property
    def cost_per_1000_good(self) -> float | None:
        """The cost of the time in backends, per 1000 requests in time."""
        good = self.sums[_GOOD]
        return 1000 * max(self.cost, 0.0) / good if good else None

    def quantile_ms(self, share: float) -> float | None:
        """A quantile of the durations of answered requests."""
        return _quantile_ms(self.sums, share)


class Track:
    """The samples of one pipeline."""

    __slots__ = ("_cost", "_counts", "_meter", "_outcomes", "history", "is_fresh", "window")

    def __init__(self, meter: PipelineMeter) -> None:
        self._meter = meter
        self._outcomes = list(meter.outcomes.values())
        self._counts = _counts(meter)
        self._cost = meter.cost
        self.window = Window(len(self._counts))
        self.history: History | None = None
        self.is_fresh = True
        """True until a request ends after the first sample of all."""

    def is_of(self, meter: PipelineMeter) -> bool:
        """True if the samples are those of a meter; a pipeline whose stages change gets another one."""
        return self._meter is meter

    def sample(self, step: int) -> tuple[list[int], float] | None:
        """Take the counters at the end of a step; what came since the last sample, None if no request has ended."""
        meter, window = self._meter, self.window
        if window:
            window.expire(step)
        outcomes = list(meter.outcomes.values())
        if outcomes == self._outcomes:
            return None
        counts, cost = _counts(meter), meter.cost
        new, spent = list(map(sub, counts, self._counts)), cost - self._cost
        self._outcomes, self._counts, self._cost = outcomes, counts, cost
        window.add(step, new, spent)
        return new, spent

    def record(self, step: int, new: list[int]) -> None:
        """Add a step to the history, if there is one."""
        history = self.history
        if history is not None:
            p50_ms, p99_ms = rounded(_quantile_ms(new, 0.5), 3), rounded(_quantile_ms(new, 0.99), 3)
            history.record(step, _ended(new), p50_ms, p99_ms)


class ModelWork(NamedTuple):
    """The batches of a model on all partitions, within some time."""

    batches: int
    rows: int
    compute_ns: int

    @property
    def mean_rows(self) -> float | None:
        """Rows of a batch."""
        return self.rows / self.batches if self.batches else None

    @property
    def mean_ms(self) -> float | None:
        """Time of a batch in the backend."""
        return ns_to_ms(self.compute_ns) / self.batches if self.batches else None


class Recorder:
    """Samples the counters of a server: of all pipelines, of partitions, and of the models of chosen pipelines."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self.tracks: dict[str, Track] = {}
        self.totals = Window(_LAST_BUCKET)
        self._times: deque[int] = deque(maxlen=WINDOW_STEPS + 1)
        self._busy: deque[dict[str, int]] = deque(maxlen=WINDOW_STEPS + 1)
        self._models: dict[str, deque[ModelWork]] = {}
        self._histories = 0
        self._first_step = 0

    def begin(self, step: int, now_ns: int) -> Slices:
        """Take the counters that the step after this one is compared with."""
        self._first_step = step
        self._times.append(now_ns)
        self._busy.append(dict(self._meters.busy_ns))
        for name, meter in list(self._meters.pipelines.items()):
            self._track(name, meter)
            yield

    def sample(self, step: int, now_ns: int, chosen: Collection[str], models: Collection[str]) -> Slices:
        """Take the counters at the end of a step.

        `chosen` are the pipelines that somebody looks at, which have a history in any case, and `models` are the keys
        of their models.
        """
        self._times.append(now_ns)
        self._busy.append(dict(self._meters.busy_ns))
        self._sample_models(models)
        totals = self.totals
        totals.expire(step)
        total, spent = [0] * _LAST_BUCKET, 0.0
        tracks = self.tracks
        for name, meter in list(self._meters.pipelines.items()):
            track = tracks.get(name)
            if track is None or not track.is_of(meter):
                track = self._track(name, meter)
            if track.history is None and name in chosen:
                self._make_room(chosen)
                self._keep_history(track, step - 1)
            new = track.sample(step)
            if new is not None:
                counts, cost = new
                total = list(map(add, total, counts))
                spent += cost
                if track.history is None and self._histories < MAX_HISTORIES:
                    self._keep_history(track, step - 1)
                track.record(step, counts)
                track.is_fresh = False
            yield
        if any(total):
            totals.add(step, total, spent)

    @property
    def window_s(self) -> float | None:
        """The length of the window; None before the second sample."""
        times = self._times
        return (times[-1] - times[0]) / NS_PER_S if len(times) > 1 else None

    def busy(self, partition: str) -> float | None:
        """The share of the window that the backend of a partition has computed."""
        window_s = self.window_s
        if window_s is None or partition not in self._busy[0]:
            return None
        return min((self._busy[-1][partition] - self._busy[0][partition]) / NS_PER_S / window_s, 1.0)

    def model(self, key: str) -> ModelWork:
        """The batches of a model of a chosen pipeline within the window."""
        samples = self._models.get(key)
        if not samples:
            return ModelWork(0, 0, 0)
        return ModelWork(*map(sub, samples[-1], samples[0]))

    def watch_models(self, keys: Collection[str]) -> None:
        """Take the counters of models that are sampled from now on, as those of a chosen pipeline."""
        for key in keys:
            if key not in self._models:
                self._models[key] = deque([self._work_so_far(key)], maxlen=WINDOW_STEPS + 1)

    def _track(self, name: str, meter: PipelineMeter) -> Track:
        replaced = self.tracks.get(name)
        track = self.tracks[name] = Track(meter)
        if replaced is not None:
            track.history, track.is_fresh = replaced.history, replaced.is_fresh
        return track

    def _keep_history(self, track: Track, begin: int) -> None:
        """Keep what comes after a step, and what is known of the time before: nothing ended while it was fresh."""
        track.history = History(self._first_step if track.is_fresh else begin)
        self._histories += 1

    def _make_room(self, chosen: Collection[str]) -> None:
        """Drop the history of a pipeline that nobody looks at, if there are as many as may be."""
        if self._histories < MAX_HISTORIES:
            return
        for name, track in self.tracks.items():
            if track.history is not None and name not in chosen:
                track.history = None
                self._histories -= 1
                return

    def _sample_models(self, models: Collection[str]) -> None:
        self._models = {key: self._models.get(key) or deque(maxlen=WINDOW_STEPS + 1) for key in models}
        for key, samples in self._models.items():
            samples.append(self._work_so_far(key))

    def _work_so_far(self, key: str) -> ModelWork:
        batches = self._meters.batches
        meters = [meter for name in self._meters.busy_ns if (meter := batches.get((key, name))) is not None]
        return ModelWork(
            sum(sum(meter.rows.counts) for meter in meters),
            sum(meter.rows.total for meter in meters),
            sum(meter.compute.total for meter in meters),
        )


def _counts(meter: PipelineMeter) -> list[int]:
    """The outcomes, the buckets of the durations, and the rows of the stages."""
    return [*meter.outcomes.values(), *meter.duration.counts, *meter.stage_rows]


def _ended(counts: Sequence[int]) -> EndedRequests:
    return EndedRequests(
        counts[_GOOD],
        counts[_LATE],
        sum([counts[index] for index in _REFUSED]),
        sum([counts[index] for index in _FAILED]),
        counts[_CANCELLED],
    )


def _quantile_ms(counts: Sequence[int], share: float) -> float | None:
    value_ns = quantile_ns(counts[_LAST_OUTCOME:_LAST_BUCKET], share)
    return None if value_ns is None else value_ns / 1e6
