"""Server time by stage, from the explanations of a sample of the answers."""

import contextlib
from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

_CUT = "..."
"""End of an explanation that the server cut."""


class StageTimes(msgspec.Struct, frozen=True):
    """Where the queries that were sampled spent their time in one stage on one partition; means in milliseconds.

    The times follow each other: `queue_ms` waiting behind other queries, `batch_wait_ms` waiting for a batch to fill,
    `hand_off_ms` to the worker, `compute_ms` in the backend, `return_ms` until the scheduler had the result.
    `queries` is the number of explanations with this stage. `batch_rows` is the mean size of the batches that they
    met, so that it is weighted by query. `cost` is the mean cost of a query's share, in units of currency. `pipeline`
    is "" in a run without a mix.
    """

    stage: str
    partition: str
    queries: int
    queue_ms: float
    batch_wait_ms: float
    hand_off_ms: float
    compute_ms: float
    return_ms: float
    batch_rows: float
    cost: float
    pipeline: str = ""

    @property
    def title(self) -> str:
        """The stage, with its pipeline where a run has several, and the partition."""
        return f"{self.pipeline}: {self.stage} on {self.partition}".removeprefix(": ")

    @property
    def times_ms(self) -> tuple[float, float, float, float, float]:
        """The times in the order in which they follow each other."""
        return self.queue_ms, self.batch_wait_ms, self.hand_off_ms, self.compute_ms, self.return_ms

    @property
    def total_ms(self) -> float:
        """Mean time in the stage."""
        return sum(self.times_ms)


def stage_times(explanations: Iterable[str], pipeline: str = "") -> tuple[StageTimes, ...]:
    """Mean figures by stage and partition, from values of the header `x-sluice-stages` for one pipeline.

    Stages come in the order in which they are met first, and the partitions of each by name. A stage that failed, a
    text that was cut and anything that is not such a value are left out.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for text in explanations:
        for part in text.split(", "):
            if not part.endswith(_CUT):
                # A server may be newer or older, or no Sluice at all.
                with contextlib.suppress(KeyError, ValueError):
                    stage, partition, figures = _figures(part)
                    total = sums.setdefault((stage, partition), [0.0] * (len(figures) + 1))
                    total[:] = [value + more for value, more in zip(total, (1.0, *figures), strict=True)]
    order = {stage: number for number, stage in enumerate(dict.fromkeys(stage for stage, _ in sums))}
    grouped = sorted(sums.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    return tuple(
        _stage_times(stage, partition, pipeline, round(count), values)
        for (stage, partition), (count, *values) in grouped
    )


def _stage_times(stage: str, partition: str, pipeline: str, count: int, sums: list[float]) -> StageTimes:
    queue, batch_wait, hand_off, compute, back, rows, cost = (value / count for value in sums)
    return StageTimes(stage, partition, count, queue, batch_wait, hand_off, compute, back, rows, cost, pipeline)


def _figures(part: str) -> tuple[str, str, tuple[float, ...]]:
    """Stage, partition, and the figures of `StageTimes` in its order; raises for a stage without them."""
    name, *pairs = part.split(";")
    figures = dict(pair.split("=", 1) for pair in pairs)
    if "failed" in figures:
        raise ValueError("the batch failed")
    queue_ms = float(figures["queue"])
    batch_wait_ms = float(figures.get("batch-wait", 0.0))
    return (
        unquote(name),
        unquote(figures["partition"]),
        (
            max(0.0, queue_ms - batch_wait_ms),
            batch_wait_ms,
            float(figures["hand-off"]),
            float(figures["compute"]),
            float(figures.get("return", 0.0)),
            float(figures["size"]),
            float(figures["cost"]),
        ),
    )
