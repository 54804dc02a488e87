"""The page of metrics, from the definitions of the metric families in the gateway's source."""

import ast
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from prometheus_client.process_collector import ProcessCollector

from scripts.reference.metric_notes import EXAMPLES, UNITS
from scripts.reference.tables import code, paragraph, table
from sluice.gateway.observability.exposition import ExposedMetric

GATEWAY = Path(__file__).parents[2] / "gateway"

_FAMILIES = {
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
}
_GROUPS = {
    "pipeline": "Requests and pipelines",
    "model": "Models and batches",
    "partition": "Partitions and workers",
    "": "Whole server",
}
"""Sections by the first of these labels that a metric has."""
_TRITON_SERVERS = "Triton servers"
_UNITS = {
    "_us": "microseconds",
    "_per_model": "microseconds",
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_rows": "rows",
    "_requests": "requests",
    "_count": "requests",
    "_batches": "batches",
    "_connections": "connections",
}
"""Units by the end of the name, without `_total`; other names are of what they count."""


class MetricDefinition(NamedTuple):
    """A metric as the server exposes it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def unit(self) -> str:
        """The unit of its values; "" for numbers without one."""
        if unit := UNITS.get(self.name):
            return unit
        name = self.name.removesuffix("_total")
        return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def metric_definitions() -> list[MetricDefinition]:
    """All metrics of the server, by name. Raises ValueError for one whose name, help or labels are not literal."""
    found = {}
    for file in sorted(GATEWAY.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FAMILIES:
                definition = _definition(file, node, _FAMILIES[node.func.id])
                found[definition.name] = definition
        if " ExposedMetric(" in text:
            module = import_module(".".join(("sluice", *file.relative_to(GATEWAY.parent).with_suffix("").parts)))
            for family in _families(vars(module).values()):
                found[family.name] = MetricDefinition(family.name, family.kind, family.labels, family.help)
    for own in ProcessCollector(registry=None).collect():
        name = f"{own.name}_total" if own.type == "counter" else own.name
        found[name] = MetricDefinition(name, own.type, (), own.documentation)
    return sorted(found.values())


def _families(values: Iterable[object]) -> Iterator[ExposedMetric]:
    for value in values:
        if isinstance(value, ExposedMetric):
            yield value
        elif isinstance(value, tuple):
            yield from _families(value)


def _definition(file: Path, call: ast.Call, kind: str) -> MetricDefinition:
    labels = next((keyword.value for keyword in call.keywords if keyword.arg == "labels"), None)
    try:
        name, text = (ast.literal_eval(argument) for argument in call.args[:2])
        names = () if labels is None else tuple(ast.literal_eval(labels))
    except ValueError as error:
        raise ValueError(f"{file}:{call.lineno}: expected a literal name, help and labels of a metric") from error
    return MetricDefinition(f"{name}_total" if kind == "counter" else name, kind, names, text)


def metrics_page() -> str:
    """The text of docs/reference/metrics.md."""
    definitions = metric_definitions()
    parts = [_TITLE, *map(paragraph, _INTRODUCTION)]
    parts += [
        _section(title, [each for each in definitions if _title(each) == title])
        for title in (*_GROUPS.values(), _TRITON_SERVERS)
    ]
    parts += [_PROCESS, _table([each for each in definitions if each.name.startswith("process_")])]
    parts += [_TRITON_NAMES, _table([each for each in definitions if each.name.startswith("nv_")])]
    return "\n\n".join(parts) + "\n"


def _title(metric: MetricDefinition) -> str:
    """The section of a metric; "" for one with a name of Triton's."""
    if not metric.name.startswith("sluice_"):
        return ""
    if metric.name.startswith("sluice_triton_"):
        return _TRITON_SERVERS
    return next(title for label, title in _GROUPS.items() if label in (*metric.labels, ""))


def _section(title: str, metrics: list[MetricDefinition]) -> str:
    text = f"## {title}\n\n{_table(metrics)}"
    examples = [example for each in metrics for example in EXAMPLES.get(each.name, ())]
    if not examples:
        return text
    lines = [f"{example.what}:\n\n```promql\n{example.query}\n```" for example in examples]
    return "\n\n".join((text, *lines))


def _table(metrics: list[MetricDefinition]) -> str:
    rows = [(code(each.name), each.kind, each.unit, _labels(each.labels), each.help) for each in metrics]
    return table(("Metric", "Type", "Unit", "Labels", "Meaning"), rows)


def _labels(labels: tuple[str, ...]) -> str:
    return ", ".join(map(code, labels))


_TITLE = """# Metrics

<!-- Written by `make reference` from the definitions in the code. -->"""

_INTRODUCTION = (
    """`GET /metrics` exposes all metrics in the text format of Prometheus. With `metrics_port` in the
    [configuration](configuration.md), they are also served on a port of their own.
    [Monitoring](../operate/monitoring.md) has a dashboard and alerts.""",
    """A counter never decreases while the server runs. A histogram has the series `_bucket`, `_sum` and `_count`. Costs
    are in units of the currency of the [prices](configuration.md#prices). `model` and `pipeline` are `NAME:VERSION`,
    and a model by itself is a pipeline, too. `partition` is the name of a partition or of a Triton server, and `kind`
    is a kind of partitions, such as `cpu1`.""",
)

_PROCESS = """## The main process

Metrics of the process with the scheduler, under the names that Prometheus' clients have for them."""

_TRITON_NAMES = """## Triton's names

The same counts under the names that Triton gives them, for dashboards that expect these."""
