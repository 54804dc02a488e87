"""The page of metrics, from the definitions of the metric families in the gateway's source."""

import ast
from pathlib import Path
from typing import NamedTuple

from scripts.reference.tables import code, paragraph, table
from sluice.gateway.observability.statistics import CACHE_METRICS, NV_METRICS

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
"""Headings by the first label of a metric."""


class MetricDefinition(NamedTuple):
    """A metric as the server exposes it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def metric_definitions() -> list[MetricDefinition]:
    """All `sluice_*` metrics, by name. Raises ValueError for one whose name, help or labels are not literal."""
    return sorted(
        _definition(file, node, _FAMILIES[node.func.id])
        for file in GATEWAY.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FAMILIES
    )


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
    parts = [_TITLE, *map(paragraph, _INTRODUCTION)]
    definitions = metric_definitions()
    for label, title in _GROUPS.items():
        group = [each for each in definitions if _group(each) == label and not each.name.startswith("sluice_triton")]
        parts.append(_section(title, group))
    parts.append(_section("Triton servers", [each for each in definitions if each.name.startswith("sluice_triton")]))
    parts.append(_TRITON_NAMES)
    parts.append(table(("Metric", "Type", "Labels", "Meaning"), _triton_rows()))
    return "\n\n".join(parts) + "\n"


def _group(metric: MetricDefinition) -> str:
    label = metric.labels[0] if metric.labels else ""
    return label if label in _GROUPS else ""


def _section(title: str, metrics: list[MetricDefinition]) -> str:
    rows = [(code(each.name), each.kind, _labels(each.labels), each.help) for each in metrics]
    return f"## {title}\n\n{table(('Metric', 'Type', 'Labels', 'Meaning'), rows)}"


def _labels(labels: tuple[str, ...]) -> str:
    return ", ".join(map(code, labels))


def _triton_rows() -> list[tuple[str, str, str, str]]:
    labels = _labels(("model", "version"))
    rows = []
    for name, text in NV_METRICS.items():
        kind = "gauge" if name == "pending_request_count" else "counter"
        more = f"{labels}, `reason`" if name == "request_failure" else labels
        rows.append((code(f"nv_inference_{name}"), kind, more, text))
    rows += [(code(f"nv_cache_{name}_per_model"), "counter", labels, text) for name, text in CACHE_METRICS.items()]
    return rows


_TITLE = """# Metrics

<!-- Written by `make reference` from the definitions in the code. -->"""

_INTRODUCTION = (
    """`GET /metrics` exposes all metrics in the text format of Prometheus. With `metrics_port` in the
    [configuration](configuration.md), they are also served on a port of their own.""",
    """A counter never decreases while the server runs. A histogram has the series `_bucket`, `_sum` and `_count`. Times
    are in seconds, costs in units of the currency of the [prices](configuration.md#prices). `model` and `pipeline` are
    `NAME:VERSION`, `partition` is the name of a partition or of a Triton server, and `kind` is a kind of partitions,
    such as `cpu1`.""",
)

_TRITON_NAMES = """## Triton's names

The same counts under the names that Triton gives them, for dashboards that expect these. Times are in microseconds."""
