"""Summaries of latencies under Triton's names: quantiles over the last minute."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from sluice.batcher.interface.outcome import ANSWERED
from sluice.gateway.observability.exposition import ExposedMetric, Group, pairs
from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.observability.traces.trace import Trace
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S, NS_PER_US

AGE_NS = 60 * NS_PER_S
"""Quantiles are of the values of this time, as in Triton."""
PARTS = 5
"""The parts of that time that are forgotten one by one."""
_FINE = 6
"""Values are counted in 2 ** _FINE buckets for each factor of 2, so quantiles are right within 1 %."""

_MODEL = ("model", "version")
FAMILIES = (
    ExposedMetric(
        "nv_inference_request_summary_us",
        "summary",
        "Time from arrival to answer of successful requests, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_queue_summary_us",
        "summary",
        "Time that requests waited until a worker was free for them, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_compute_input_summary_us",
        "summary",
        "Time of the inputs of requests on the way to the worker, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_compute_infer_summary_us",
        "summary",
        "Time of requests in the model's backend, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_compute_output_summary_us",
        "summary",
        "Time of the outputs of requests on the way back from the worker, in microseconds.",
        _MODEL,
    ),
)


class RecentQuantiles:
    """Count and sum of all values, and quantiles of those of the last minute; values are integers from 0 on."""

    __slots__ = ("_part_ns", "_parts", "count", "total")

    def __init__(self) -> None:
        self.count = self.total = 0
        self._parts: deque[Counter[int]] = deque([Counter()], maxlen=PARTS)
        self._part_ns = 0

    def observe(self, value: int, now_ns: int) -> None:
        """Count a value."""
        self._turn(now_ns)
        self.count += 1
        self.total += value
        self._parts[-1][_bucket(value)] += 1

    def quantiles(self, wanted: Sequence[float], now_ns: int) -> list[float]:
        """The quantiles, each in [0, 1]; NaN where there was no value. O(buckets log buckets)."""
        self._turn(now_ns)
        counts: Counter[int] = Counter()
        for part in self._parts:
            counts.update(part)
        total = counts.total()
        found = []
        for quantile in wanted:
            rank, seen = max(quantile * total, 1.0), 0
            value = float("nan")
            for bucket in sorted(counts):
                seen += counts[bucket]
                if seen >= rank:
                    value = _middle(bucket)
                    break
            found.append(value)
        return found

    def _turn(self, now_ns: int) -> None:
        """Begin new parts for the time that has passed."""
        part_ns = now_ns // (AGE_NS // PARTS)
        for _ in range(min(part_ns - self._part_ns, PARTS)):
            self._parts.append(Counter())
        self._part_ns = part_ns


class LatencySummaries(MetricsSource):
    """The latencies of answered requests, by model and pipeline; `quantiles` are numbers as text.

    A request of a pipeline counts for the pipeline, and each of its batches for the model of that batch.
    """

    def __init__(self, quantiles: Sequence[str], clock: Callable[[], int]) -> None:
        self._names = tuple(quantiles)
        self._wanted = [float(each) for each in quantiles]
        self._clock = clock
        self._of: dict[str, tuple[RecentQuantiles, ...]] = {}

    def ended(self, trace: Trace) -> None:
        """Count a request that has its outcome."""
        if trace.outcome not in ANSWERED:
            return
        now_ns = trace.ended_ns
        input_ns = infer_ns = output_ns = 0
        runs = [run for run in trace.runs if not run.failed]
        for run in runs:
            times = run.started_ns - run.startable_ns, run.ended_ns - run.started_ns, run.reported_ns - run.ended_ns
            input_ns, infer_ns, output_ns = input_ns + times[0], infer_ns + times[1], output_ns + times[2]
            if trace.is_pipeline:
                ready_ns = trace.ready_ns(run.dispatched_ns)
                self._count(run.batch.model, now_ns, run.reported_ns - ready_ns, run.startable_ns - ready_ns, times)
        compute = (input_ns, infer_ns, output_ns) if runs else ()
        self._count(trace.arrival.pipeline, now_ns, now_ns - trace.arrived_ns, trace.queue_ns, compute)

    def _count(self, key: str, now_ns: int, request_ns: int, queue_ns: int, compute: Sequence[int]) -> None:
        public = public_key(key)
        summaries = self._of.get(public)
        if summaries is None:
            summaries = self._of[public] = tuple(RecentQuantiles() for _ in FAMILIES)
        for summary, value_ns in zip(summaries, (request_ns, queue_ns, *compute), strict=False):
            summary.observe(max(value_ns, 0) // NS_PER_US, now_ns)

    def collect(self) -> Iterator[Metric]:
        """No family has few samples."""
        yield from ()

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield Group(FAMILIES, (self._texts(key, summaries) for key, summaries in list(self._of.items())))

    def _texts(self, key: str, summaries: Sequence[RecentQuantiles]) -> tuple[str, ...]:
        name, _, version = key.rpartition(":")
        labels = pairs(_MODEL, (name, version))
        now_ns = self._clock()
        texts = []
        for family, summary in zip(FAMILIES, summaries, strict=True):
            values = summary.quantiles(self._wanted, now_ns)
            lines = [
                f'{family.name}{{{labels},quantile="{quantile}"}} {_number(value)}\n'
                for quantile, value in zip(self._names, values, strict=True)
            ]
            lines += [
                f"{family.name}_sum{{{labels}}} {summary.total}\n",
                f"{family.name}_count{{{labels}}} {summary.count}\n",
            ]
            texts.append("".join(lines))
        return tuple(texts)


def _number(value: float) -> str:
    return "NaN" if value != value else f"{value:.10g}"  # noqa: PLR0124 (NaN differs from itself)


def _bucket(value: int) -> int:
    if value < 2 << _FINE:
        return value
    shift = value.bit_length() - _FINE - 1
    return (shift << _FINE) + (value >> shift)


def _middle(bucket: int) -> float:
    if bucket < 2 << _FINE:
        return float(bucket)
    shift = (bucket >> _FINE) - 1
    lower = bucket - (shift << _FINE) << shift
    return lower + ((1 << shift) - 1) / 2
