"""Notes on metrics for their page: units that the names do not tell, and queries that use them."""

from typing import NamedTuple


class Example(NamedTuple):
    """A query in PromQL, and what it gives. Tests run it against a server with traffic."""

    what: str
    query: str


UNITS = {
    "sluice_cost_total": "currency",
    "sluice_cost_per_1000_good_requests": "currency",
}
"""Units by metric, where the end of its name does not tell."""

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "sluice_requests_total": (
        Example(
            "Requests a second by outcome",
            "sum by (pipeline, outcome) (rate(sluice_requests_total[1m]))",
        ),
        Example(
            "Share of requests in time, without those that clients cancelled",
            'sum by (pipeline) (rate(sluice_requests_total{outcome="completed"}[5m])) / '
            'sum by (pipeline) (rate(sluice_requests_total{outcome!="cancelled_client"}[5m]))',
        ),
    ),
    "sluice_request_duration_seconds": (
        Example(
            "99th percentile of the latency",
            "histogram_quantile(0.99, sum by (pipeline, le) (rate(sluice_request_duration_seconds_bucket[5m])))",
        ),
    ),
    "sluice_stage_rows_total": (
        Example(
            "Share of the rows of a pipeline that a stage runs",
            "rate(sluice_stage_rows_total[5m]) / "
            "on (pipeline) group_left () max by (pipeline) (rate(sluice_stage_rows_total[5m]))",
        ),
    ),
    "sluice_cost_total": (
        Example(
            "Cost per 1000 requests in time",
            "1000 * sum by (pipeline) (rate(sluice_cost_total[5m])) / "
            'sum by (pipeline) (rate(sluice_requests_total{outcome="completed"}[5m]))',
        ),
    ),
    "sluice_batch_rows": (
        Example(
            "Mean rows of a batch",
            "sum by (model) (rate(sluice_batch_rows_sum[5m])) / sum by (model) (rate(sluice_batch_rows_count[5m]))",
        ),
    ),
    "sluice_batches_total": (
        Example(
            "Batches a second by the reason they were closed",
            "sum by (model, reason) (rate(sluice_batches_total[5m]))",
        ),
    ),
    "sluice_partition_busy_seconds_total": (
        Example("Share of time that a partition is busy", "rate(sluice_partition_busy_seconds_total[1m])"),
    ),
}
"""Queries by the metric that they are shown with."""
