"""Notes on metrics for their page: units that the names do not tell, and queries that use them."""

from typing import NamedTuple


class Example(NamedTuple):
    """A query in PromQL, and what it gives. Tests run it against a server with traffic."""

    what: str
    query: str


UNITS = {
    "nv_cpu_utilization": "share",
    "nv_energy_consumption": "joules",
    "nv_gpu_power_limit": "watts",
    "nv_gpu_power_usage": "watts",
    "nv_gpu_utilization": "share",
    "nv_inference_count": "rows",
    "nv_inference_exec_count": "batches",
    "nv_cache_num_hits_per_model": "requests",
    "nv_cache_num_misses_per_model": "requests",
    "nv_inference_request_success": "requests",
    "nv_inference_request_failure": "requests",
    "process_open_fds": "files",
    "process_max_fds": "files",
    "sluice_slo_attainment": "share",
    "sluice_pipeline_headroom": "factor",
    "sluice_latency_correction": "factor",
    "sluice_pipeline_objective_percentile": "percent",
    "sluice_batch_failures_total": "batches",
    "sluice_plan_failures_total": "plans",
    "sluice_plan_fallbacks_total": "batches",
    "sluice_model_loads_total": "loads",
    "sluice_model_evictions_total": "evictions",
    "sluice_model_prewarms_total": "loads",
    "sluice_instance_choices_total": "partitions",
    "sluice_instance_steals_total": "partitions",
    "sluice_models": "versions",
    "sluice_partition_models": "models",
    "sluice_front_ends": "processes",
    "sluice_front_end_losses_total": "processes",
    "sluice_worker_restarts_total": "processes",
    "sluice_partition_resizes_total": "resizes",
    "sluice_node_bandwidth_bytes_per_second": "bytes per second",
    "sluice_triton_executions_total": "batches",
    "sluice_triton_inferences_total": "rows",
    "sluice_client_faults_total": "faults",
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
    "sluice_pipeline_headroom": (
        Example(
            "Share of the traffic that would be too much, for an autoscaler",
            "1 / min(sluice_pipeline_headroom)",
        ),
    ),
    "sluice_pipeline_predicted_wait_seconds": (
        Example(
            "Predicted wait as a part of the objective",
            "sluice_pipeline_predicted_wait_seconds / sluice_pipeline_objective_seconds",
        ),
    ),
    "sluice_partition_busy_seconds_total": (
        Example("Share of time that a partition is busy", "rate(sluice_partition_busy_seconds_total[1m])"),
    ),
}
"""Queries by the metric that they are shown with."""
