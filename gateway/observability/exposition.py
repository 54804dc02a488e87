"""The text formats of Prometheus and OpenMetrics, written in small steps: no scrape keeps the event loop for long.

Source of the latter: https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from time import perf_counter_ns
from typing import Literal, NamedTuple

from prometheus_client.core import Metric

SLICE_NS = 200_000
"""A scrape gives the loop to others after about this time."""
CHUNK_TEXTS = 64
"""The texts that are put together in one step."""
KEPT_LABELS = 1 << 14
"""The labels that are kept as text from one scrape to the next."""
END = b"# EOF\n"
"""The last line of OpenMetrics."""
Exemplars = Mapping[int, tuple[int, str]]
"""A value and a trace id, by the index of a bucket."""
NO_EXEMPLARS: Exemplars = {}

Kind = Literal["counter", "gauge", "histogram", "summary"]


class ExposedMetric(NamedTuple):
    """A metric: the name is that of its samples, without the `_bucket`, `_sum` and `_count` of those with several."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """The lines before the samples in the text format."""
        return f"# HELP {self.name} {escaped(self.help)}\n# TYPE {self.name} {self.kind}\n"

    @property
    def openmetrics_header(self) -> str:
        """The lines before the samples in OpenMetrics, where a family of counters is named without `_total`.

        A counter whose samples do not end in that, as those of Triton, has no type there that it could have.
        """
        name, kind = self.name, str(self.kind)
        if kind == "counter":
            name = name.removesuffix("_total")
            kind = "unknown" if name == self.name else kind
        text = escaped(self.help, quotes=True)
        return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"

    def sample(self, values: tuple[str, ...], value: float) -> str:
        """The line of one sample, with a value for each label."""
        return f"{self.name}{labelled(self.labels, values)} {float(value)!r}\n"


class Group(NamedTuple):
    """Families that are written together.

    Each item of `texts` has the lines of each family about one thing, all of the same instant. An empty item is only a
    step, at which the scrape may pause. A family without lines is left out with its header.
    """

    families: tuple[ExposedMetric, ...]
    texts: Iterable[tuple[str, ...]]


class HistogramText:
    """Writes histograms of one family. `bounds` are divided by `unit`, as are the sums."""

    def __init__(self, family: ExposedMetric, bounds: Sequence[int], unit: int = 1) -> None:
        name = family.name
        limits = [*(repr(bound / unit) for bound in bounds), "+Inf"]
        self._buckets = [f'{name}_bucket{{le="{limit}",\0}} %d.0' for limit in limits]
        self._lines = "\n".join([*self._buckets, f"{name}_count{{\0}} %d.0", f"{name}_sum{{\0}} %r", ""])
        self._unit = unit

    def text(self, labels: str, counts: Sequence[int], total: int, exemplars: Exemplars = NO_EXEMPLARS) -> str:
        """The lines of one histogram; `labels` are as in `pairs`, `counts` are by bucket and not accumulated.

        Exemplars are only for OpenMetrics; their values are in the unit of the bounds.
        """
        ascending = tuple(accumulate(counts))
        lines = self._lines
        for index, (value, trace_id) in exemplars.items():
            bucket = self._buckets[index]
            lines = lines.replace(bucket, f'{bucket} # {{trace_id="{trace_id}"}} {value / self._unit!r}', 1)
        return (lines % (*ascending, ascending[-1], total / self._unit)).replace("\0", labels)


def escaped(text: str, *, quotes: bool = False) -> str:
    """Text of a header or, with `quotes`, of a label's value, as the format wants it."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


@lru_cache(KEPT_LABELS)
def pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Labels without their braces: `model="mlp:1",partition="cpu0"`."""
    return ",".join([f'{name}="{escaped(value, quotes=True)}"' for name, value in zip(names, values, strict=True)])


def labelled(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Labels within their braces; nothing without labels."""
    return f"{{{pairs(names, values)}}}" if names else ""


def of_metrics(metrics: Iterable[Metric]) -> Iterator[Group]:
    """The groups of families that were made for prometheus_client."""
    for metric in metrics:
        suffix = "_total" if metric.type == "counter" else ""
        kind: Kind = "counter" if metric.type == "counter" else "gauge"
        family = ExposedMetric(metric.name + suffix, kind, metric.documentation)
        lines = (
            (f"{each.name}{labelled(tuple(each.labels), tuple(each.labels.values()))} {float(each.value)!r}\n",)
            for each in metric.samples
        )
        yield Group((family,), lines)


def steps(groups: Iterable[Group], *, openmetrics: bool = False) -> Iterator[bytes | None]:
    """The exposition in pieces; None is a step without a piece."""
    for families, texts in groups:
        columns: list[list[str]] = [[] for _ in families]
        for item in texts:
            for column, text in zip(columns, item, strict=False):
                if text:
                    column.append(text)
            yield None
        for family, column in zip(families, columns, strict=True):
            if not column:
                continue
            rest = iter(column)
            header = family.openmetrics_header if openmetrics else family.header
            while chunk := list(islice(rest, CHUNK_TEXTS)):
                yield (header + "".join(chunk)).encode()
                header = ""
    if openmetrics:
        yield END


def exposition(groups: Iterable[Group], *, openmetrics: bool = False) -> bytes:
    """The exposition in one step."""
    return b"".join(piece for piece in steps(groups, openmetrics=openmetrics) if piece is not None)


async def exposition_in_slices(
    groups: Iterable[Group],
    clock_ns: Callable[[], int] = perf_counter_ns,
    slice_ns: int = SLICE_NS,
    *,
    openmetrics: bool = False,
) -> list[bytes]:
    """The exposition in pieces; the loop gets its turn after each `slice_ns`."""
    pieces = []
    until_ns = clock_ns() + slice_ns
    for piece in steps(groups, openmetrics=openmetrics):
        if piece is not None:
            pieces.append(piece)
        if clock_ns() >= until_ns:
            await asyncio.sleep(0)
            until_ns = clock_ns() + slice_ns
    return pieces
