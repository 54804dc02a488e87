"""The server's own figures by model, from the statistics extension of the V2 protocol."""

from collections.abc import Iterable

import msgspec

from sluice.models.units import NS_PER_MS


class ModelActivity(msgspec.Struct, frozen=True):
    """The activity of one model during a run, warm-up included; times are means of its requests in milliseconds.

    `queue_ms` includes the wait for a batch to fill. `input_ms` is the hand-off of inputs to the backend, and
    `output_ms` the way back of the outputs. `batch_sizes` has pairs of (rows, batches), the rows ascending.
    `is_pipeline` marks a pipeline or ensemble, whose batches are its requests.
    """

    model: str
    requests: int
    failures: int
    rows: int
    batches: int
    queue_ms: float
    input_ms: float
    compute_ms: float
    output_ms: float
    batch_sizes: tuple[tuple[int, int], ...] = ()
    is_pipeline: bool = False

    @property
    def mean_batch(self) -> float:
        """Mean rows a batch; 0 without batches."""
        return self.rows / self.batches if self.batches else 0.0

    @property
    def met_batch(self) -> float:
        """Mean size of the batch that a row met: every batch counts once for each of its rows; 0 if not known."""
        rows = sum(size * count for size, count in self.batch_sizes)
        return sum(size * size * count for size, count in self.batch_sizes) / rows if rows else 0.0


class _Duration(msgspec.Struct):
    count: int = 0
    ns: int = 0


class _InferenceTimes(msgspec.Struct):
    success: _Duration = msgspec.field(default_factory=_Duration)
    fail: _Duration = msgspec.field(default_factory=_Duration)
    queue: _Duration = msgspec.field(default_factory=_Duration)
    compute_input: _Duration = msgspec.field(default_factory=_Duration)
    compute_infer: _Duration = msgspec.field(default_factory=_Duration)
    compute_output: _Duration = msgspec.field(default_factory=_Duration)


class _BatchTimes(msgspec.Struct):
    batch_size: int = 0
    compute_infer: _Duration = msgspec.field(default_factory=_Duration)


class ServedCounts(msgspec.Struct):
    """The counts of one model since its server started."""

    name: str
    version: str = ""
    inference_count: int = 0
    execution_count: int = 0
    inference_stats: _InferenceTimes = msgspec.field(default_factory=_InferenceTimes)
    batch_stats: list[_BatchTimes] = msgspec.field(default_factory=list)

    @property
    def key(self) -> str:
        """Name and version."""
        return f"{self.name}:{self.version}" if self.version else self.name


class _Statistics(msgspec.Struct):
    model_stats: list[ServedCounts]


_DECODER = msgspec.json.Decoder(_Statistics, strict=False)
"""Protobuf writes 64-bit numbers as text, which only a lax decoder takes."""


def read_counts(body: bytes) -> dict[str, ServedCounts]:
    """The counts by name and version; raises `ValueError` for anything but the protocol's statistics."""
    return {counts.key: counts for counts in _DECODER.decode(body).model_stats}


def activity_between(
    before: dict[str, ServedCounts], after: dict[str, ServedCounts], pipelines: Iterable[str] = ()
) -> tuple[ModelActivity, ...]:
    """The activity of models between two readings, by key; `pipelines` are names of pipelines.

    A model that did nothing is left out, and so is one whose counts went back: its server was restarted.
    """
    names = frozenset(pipelines)
    grown = []
    for key, late in sorted(after.items()):
        early = before.get(key) or ServedCounts(late.name)
        executions = late.execution_count - early.execution_count
        failures = late.inference_stats.fail.count - early.inference_stats.fail.count
        if min(executions, failures) >= 0 and executions + failures:
            grown.append(_activity(early, late, late.name in names))
    return tuple(grown)


def _activity(early: ServedCounts, late: ServedCounts, is_pipeline: bool) -> ModelActivity:
    begun, ended = early.inference_stats, late.inference_stats
    sizes = {each.batch_size: -each.compute_infer.count for each in early.batch_stats}
    for each in late.batch_stats:
        sizes[each.batch_size] = sizes.get(each.batch_size, 0) + each.compute_infer.count
    return ModelActivity(
        model=late.key,
        requests=ended.success.count - begun.success.count,
        failures=ended.fail.count - begun.fail.count,
        rows=late.inference_count - early.inference_count,
        batches=late.execution_count - early.execution_count,
        queue_ms=_mean_ms(begun.queue, ended.queue),
        input_ms=_mean_ms(begun.compute_input, ended.compute_input),
        compute_ms=_mean_ms(begun.compute_infer, ended.compute_infer),
        output_ms=_mean_ms(begun.compute_output, ended.compute_output),
        batch_sizes=tuple((size, count) for size, count in sorted(sizes.items()) if count > 0),
        is_pipeline=is_pipeline,
    )


def _mean_ms(begun: _Duration, ended: _Duration) -> float:
    count = ended.count - begun.count
    return (ended.ns - begun.ns) / count / NS_PER_MS if count > 0 else 0.0
