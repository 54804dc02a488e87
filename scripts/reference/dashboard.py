"""The dashboard for Grafana, deploy/grafana/sluice.json, from the panels below."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

WIDTH = 24
"""Columns of Grafana's grid."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """A query in PromQL, and the name of its series with labels in double braces.

    With `exemplars`, the chart has points for requests, which lead to their traces.
    """

    expr: str
    legend: str = ""
    exemplars: bool = False


class Panel(NamedTuple):
    """A chart, or with `is_stat` one number. `limits` colour a number from their values on."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 8
    is_stat: bool = False
    is_stacked: bool = False
    limits: tuple[tuple[float | None, str], ...] = ()
    most: float | None = None


class Row(NamedTuple):
    """A section; one that is `collapsed` is for servers that have the metrics of its panels."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


_HERE = 'instance=~"$instance"'
_CHOSEN = f'{_HERE}, pipeline=~"$pipeline"'
_ADMITTED = f'sluice_requests_total{{{_CHOSEN}, outcome!~"rejected_.*|cancelled_client"}}[$__rate_interval]'
_IN_TIME = f'sluice_requests_total{{{_CHOSEN}, outcome="completed"}}[$__rate_interval]'
_DURATIONS = f"sluice_request_duration_seconds_bucket{{{_CHOSEN}}}[$__rate_interval]"
_GOOD_HIGH = ((None, "red"), (0.95, "orange"), (0.99, "green"))
_BAD_HIGH = ((None, "green"), (0.001, "orange"), (1.0, "red"))


def _quantile(quantile: float, by: str = "") -> str:
    return f"histogram_quantile({quantile}, sum by (le{by}) (rate({_DURATIONS})))"


ROWS = (
    Row(
        "Overview",
        (
            Panel(
                "Ready",
                "Servers that take requests, of those that are scraped.",
                (Query(f"sum(sluice_ready{{{_HERE}}}) / count(sluice_ready{{{_HERE}}})"),),
                "percentunit",
                3,
                is_stat=True,
                limits=((None, "red"), (1.0, "green")),
            ),
            Panel(
                "Requests",
                "All requests that end, whatever their outcome.",
                (Query(f"sum(rate(sluice_requests_total{{{_CHOSEN}}}[$__rate_interval]))"),),
                "reqps",
                3,
                is_stat=True,
            ),
            Panel(
                "In time",
                "Share of the admitted requests that are completed within their objective.",
                (Query(f"sum(rate({_IN_TIME})) / sum(rate({_ADMITTED}))"),),
                "percentunit",
                3,
                is_stat=True,
                limits=_GOOD_HIGH,
            ),
            Panel(
                "p99",
                "99th percentile of the latency of answered requests.",
                (Query(_quantile(0.99)),),
                "s",
                3,
                is_stat=True,
            ),
            Panel(
                "Refused",
                "Requests that are refused, because they could not be in time or there is no room.",
                (Query(f'sum(rate(sluice_requests_total{{{_CHOSEN}, outcome=~"rejected_.*"}}[$__rate_interval]))'),),
                "reqps",
                3,
                is_stat=True,
                limits=_BAD_HIGH,
            ),
            Panel(
                "Failed",
                "Requests that fail in a model or with a worker.",
                (Query(f'sum(rate(sluice_requests_total{{{_CHOSEN}, outcome=~"failed_.*"}}[$__rate_interval]))'),),
                "reqps",
                3,
                is_stat=True,
                limits=_BAD_HIGH,
            ),
            Panel(
                "Headroom",
                "The least factor by which traffic can grow until a pipeline misses its objective.",
                (Query(f"min(sluice_pipeline_headroom{{{_CHOSEN}}})"),),
                "none",
                3,
                is_stat=True,
                limits=((None, "red"), (1.0, "orange"), (1.2, "green")),
            ),
            Panel(
                "Cost per 1000 in time",
                "Cost of the computing time per 1000 requests that are completed within their objective.",
                (Query(f"1000 * sum(rate(sluice_cost_total{{{_CHOSEN}}}[$__rate_interval])) / sum(rate({_IN_TIME}))"),),
                "none",
                3,
                is_stat=True,
            ),
        ),
    ),
    Row(
        "Requests",
        (
            Panel(
                "Requests by outcome",
                "Requests a second by how they end.",
                (
                    Query(
                        f"sum by (outcome) (rate(sluice_requests_total{{{_CHOSEN}}}[$__rate_interval]))",
                        "{{outcome}}",
                    ),
                ),
                "reqps",
                12,
                is_stacked=True,
            ),
            Panel(
                "Latency",
                "Percentiles of the latency of answered requests, and the strictest objective of the chosen pipelines.",
                (
                    Query(_quantile(0.5), "p50"),
                    Query(_quantile(0.9), "p90"),
                    Query(_quantile(0.99), "p99", exemplars=True),
                    Query(f"min(sluice_pipeline_objective_seconds{{{_CHOSEN}}})", "objective"),
                ),
                "s",
                12,
            ),
            Panel(
                "In time, by pipeline",
                "Share of the admitted requests that are completed within their objective.",
                (
                    Query(
                        f"sum by (pipeline) (rate({_IN_TIME})) / (sum by (pipeline) (rate({_ADMITTED})) > 0)",
                        "{{pipeline}}",
                    ),
                    Query(f"max(sluice_pipeline_objective_percentile{{{_CHOSEN}}}) / 100", "wanted"),
                ),
                "percentunit",
                most=1,
            ),
            Panel(
                "p99, by pipeline",
                "99th percentile of the latency of answered requests.",
                (Query(_quantile(0.99, ", pipeline"), "{{pipeline}}"),),
                "s",
            ),
            Panel(
                "In flight",
                "Requests that are admitted and have no outcome yet.",
                (
                    Query(
                        f"sum by (pipeline) (sluice_pipeline_in_flight_requests{{{_CHOSEN}}})",
                        "{{pipeline}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Pipelines and capacity",
        (
            Panel(
                "Headroom",
                "Factor by which all traffic can grow until the pipeline misses its objective, by the latest plan.",
                (Query(f"min by (pipeline) (sluice_pipeline_headroom{{{_CHOSEN}}})", "{{pipeline}}"),),
                "none",
            ),
            Panel(
                "Predicted wait",
                "Time that a request which arrives now would wait for partitions.",
                (
                    Query(
                        f"max by (pipeline) (sluice_pipeline_predicted_wait_seconds{{{_CHOSEN}}})",
                        "{{pipeline}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Rows by stage",
                "Rows a second of each stage: later stages of a cascade run for some rows only.",
                (
                    Query(
                        f"sum by (pipeline, stage) (rate(sluice_stage_rows_total{{{_CHOSEN}}}[$__rate_interval]))",
                        "{{pipeline}} {{stage}}",
                    ),
                ),
                "rowsps",
            ),
            Panel(
                "Cost",
                "Cost of computing time an hour, in the currency of the prices.",
                (
                    Query(
                        f"3600 * sum by (pipeline) (rate(sluice_cost_total{{{_CHOSEN}}}[$__rate_interval]))",
                        "{{pipeline}}",
                    ),
                ),
                "none",
                is_stacked=True,
            ),
            Panel(
                "Cost per 1000 requests in time",
                "Only requests that are completed within their objective count.",
                (
                    Query(
                        f"1000 * sum by (pipeline) (rate(sluice_cost_total{{{_CHOSEN}}}[$__rate_interval])) / "
                        f"(sum by (pipeline) (rate({_IN_TIME})) > 0)",
                        "{{pipeline}}",
                    ),
                ),
                "none",
            ),
            Panel(
                "Measured latency against profile",
                "1 where the profile of a model is right; above, the model is slower.",
                (
                    Query(
                        f"max by (model, kind) (sluice_latency_correction{{{_HERE}}})",
                        "{{model}} on {{kind}}",
                    ),
                ),
                "none",
            ),
        ),
    ),
    Row(
        "Queues and batches",
        (
            Panel(
                "Rows that wait",
                "Rows in the queues of models.",
                (Query(f"sum by (model) (sluice_queue_rows{{{_HERE}}})", "{{model}}"),),
            ),
            Panel(
                "Rows of a batch",
                "Mean rows of the batches that end.",
                (
                    Query(
                        f"sum by (model) (rate(sluice_batch_rows_sum{{{_HERE}}}[$__rate_interval])) / "
                        f"(sum by (model) (rate(sluice_batch_rows_count{{{_HERE}}}[$__rate_interval])) > 0)",
                        "{{model}}",
                    ),
                ),
            ),
            Panel(
                "Batches by reason",
                "Batches a second by why they were closed.",
                (
                    Query(
                        f"sum by (reason) (rate(sluice_batches_total{{{_HERE}}}[$__rate_interval]))",
                        "{{reason}}",
                    ),
                ),
                "ops",
                is_stacked=True,
            ),
            Panel(
                "Time of a batch, p99",
                "99th percentile of the time in the backend.",
                (
                    Query(
                        "histogram_quantile(0.99, sum by (model, le) "
                        f"(rate(sluice_batch_compute_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
                        "{{model}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Failed batches",
                "Batches a second that do not complete, by cause.",
                (
                    Query(
                        f"sum by (cause) (rate(sluice_batch_failures_total{{{_HERE}}}[$__rate_interval]))",
                        "{{cause}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Time of requests by phase",
                "Mean time that a request waits, is handed over, computes and is returned, by model.",
                tuple(
                    Query(
                        f"sum(rate(nv_inference_{phase}_duration_us{{{_HERE}}}[$__rate_interval])) / "
                        f"sum(rate(nv_inference_request_success{{{_HERE}}}[$__rate_interval]))",
                        name,
                    )
                    for phase, name in (
                        ("queue", "queue"),
                        ("compute_input", "input"),
                        ("compute_infer", "compute"),
                        ("compute_output", "output"),
                    )
                ),
                "µs",
                is_stacked=True,
            ),
        ),
    ),
    Row(
        "Partitions",
        (
            Panel(
                "Busy",
                "Share of the time that partitions compute.",
                (
                    Query(
                        f"rate(sluice_partition_busy_seconds_total{{{_HERE}}}[$__rate_interval])",
                        "{{instance}} {{partition}}",
                    ),
                ),
                "percentunit",
                most=1,
            ),
            Panel(
                "Rows that run",
                "Rows in batches that are dispatched and not over.",
                (
                    Query(
                        f"sum by (instance, partition) (sluice_running_rows{{{_HERE}}})",
                        "{{instance}} {{partition}}",
                    ),
                ),
            ),
            Panel(
                "Up",
                "1 while the partition takes batches.",
                (Query(f"sluice_partition_ready{{{_HERE}}}", "{{instance}} {{partition}}"),),
                most=1,
            ),
            Panel(
                "Memory of workers",
                "Resident memory of workers and front ends, memory that they share included.",
                (Query(f"sluice_process_resident_memory_bytes{{{_HERE}}}", "{{instance}} {{process}}"),),
                "bytes",
            ),
            Panel(
                "Models",
                "Models that are loaded on each partition.",
                (Query(f"sluice_partition_models{{{_HERE}}}", "{{instance}} {{partition}}"),),
            ),
            Panel(
                "Workers lost",
                "Workers that ended unexpectedly, in the last hour.",
                (Query(f"increase(sluice_worker_restarts_total{{{_HERE}}}[1h])", "{{instance}} {{partition}}"),),
            ),
        ),
    ),
    Row(
        "Server",
        (
            Panel(
                "Processor time",
                "Processors that the server's main process, its workers and front ends take.",
                (
                    Query(f"rate(process_cpu_seconds_total{{{_HERE}}}[$__rate_interval])", "{{instance}} server"),
                    Query(
                        f"rate(sluice_process_cpu_seconds_total{{{_HERE}}}[$__rate_interval])",
                        "{{instance}} {{process}}",
                    ),
                ),
                is_stacked=True,
            ),
            Panel(
                "Connections",
                "Open connections of clients.",
                (
                    Query(f"sum(sluice_http_connections{{{_HERE}}})", "HTTP"),
                    Query(f"sum(sluice_grpc_connections{{{_HERE}}})", "gRPC"),
                ),
            ),
            Panel(
                "Memory of requests",
                "Requests and answers in buffers, and inputs in shared memory.",
                (
                    Query(f"sum(sluice_buffer_used_bytes{{{_HERE}}})", "buffers"),
                    Query(f"sum(sluice_arena_used_bytes{{{_HERE}}})", "inputs"),
                ),
                "bytes",
            ),
            Panel(
                "Faults of clients",
                "Requests and connections that the front door ends, by reason.",
                (
                    Query(
                        f"sum by (reason) (rate(sluice_client_faults_total{{{_HERE}}}[$__rate_interval]))",
                        "{{reason}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Machine",
                "Share of processors that are busy, and of memory that is in use, on the whole machine.",
                (
                    Query(f"nv_cpu_utilization{{{_HERE}}}", "{{instance}} processors"),
                    Query(
                        f"nv_cpu_memory_used_bytes{{{_HERE}}} / nv_cpu_memory_total_bytes{{{_HERE}}}",
                        "{{instance}} memory",
                    ),
                ),
                "percentunit",
                most=1,
            ),
            Panel(
                "Models by status",
                "Versions of models and pipelines.",
                (Query(f"sum by (status) (sluice_models{{{_HERE}}})", "{{status}}"),),
            ),
        ),
    ),
    Row(
        "GPUs",
        (
            Panel("Busy", "", (Query(f"nv_gpu_utilization{{{_HERE}}}", "{{gpu_uuid}}"),), "percentunit", most=1),
            Panel(
                "Memory in use",
                "",
                (Query(f"nv_gpu_memory_used_bytes{{{_HERE}}}", "{{gpu_uuid}}"),),
                "bytes",
            ),
            Panel("Power", "", (Query(f"nv_gpu_power_usage{{{_HERE}}}", "{{gpu_uuid}}"),), "watt"),
        ),
        collapsed=True,
    ),
    Row(
        "Models on demand",
        (
            Panel(
                "Loads",
                "Models loaded on demand, by cause.",
                (Query(f"sum by (cause) (rate(sluice_model_loads_total{{{_HERE}}}[$__rate_interval]))", "{{cause}}"),),
                "ops",
            ),
            Panel(
                "Evictions",
                "Models evicted to make room for others.",
                (Query(f"sum(rate(sluice_model_evictions_total{{{_HERE}}}[$__rate_interval]))", "evictions"),),
                "ops",
            ),
            Panel(
                "Free memory",
                "Memory of partitions that is free for models.",
                (Query(f"sluice_partition_free_bytes{{{_HERE}}}", "{{instance}} {{partition}}"),),
                "bytes",
            ),
        ),
        collapsed=True,
    ),
)


def dashboard() -> str:
    """The text of deploy/grafana/sluice.json."""
    document = {
        "__inputs": [],
        "__requires": [{"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}],
        "uid": "sluice",
        "title": "Sluice",
        "description": "Requests, latency against objectives, batches, partitions and cost of Sluice servers.",
        "tags": ["sluice", "inference"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 38,
        "version": 1,
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "annotations": {"list": [_restarts()]},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _restarts() -> dict[str, Any]:
    """Marks where a server was started."""
    return {
        "name": "Starts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": f'changes(process_start_time_seconds{{{_HERE}, job="sluice"}}[$__rate_interval]) > 0',
        "titleFormat": "started",
        "textFormat": "{{instance}}",
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    yield _choice("instance", "Server", "label_values(sluice_build_info, instance)")
    yield _choice("pipeline", "Pipeline", f"label_values(sluice_requests_total{{{_HERE}}}, pipeline)")


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    top, number = 0, 0
    for row in ROWS:
        number += 1
        head: dict[str, Any] = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        top += 1
        panels, bottom = _placed(row.panels, top, number + 1)
        number += len(panels)
        if row.collapsed:
            yield head | {"panels": panels}
        else:
            yield head
            yield from panels
            top = bottom


def _placed(panels: Sequence[Panel], top: int, number: int) -> tuple[list[dict[str, Any]], int]:
    """Panels from left to right, and the line below them."""
    placed: list[dict[str, Any]] = []
    left = height = 0
    for panel in panels:
        if left + panel.width > WIDTH:
            top, left, height = top + height, 0, 0
        height = max(height, 4 if panel.is_stat else 8)
        place = {"x": left, "y": top, "w": panel.width, "h": 4 if panel.is_stat else 8}
        placed.append({"id": number + len(placed), "gridPos": place, **_panel(panel)})
        left += panel.width
    return placed, top + height


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.is_stat:
        steps = panel.limits or ((None, "blue"),)
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [{"value": value, "color": color} for value, color in steps],
        }
        defaults["color"] = {"mode": "thresholds"}
    else:
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.is_stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "range": True,
                **({"exemplar": True} if query.exemplars else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.is_stat:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "value",
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
