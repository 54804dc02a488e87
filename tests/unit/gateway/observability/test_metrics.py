import os

from prometheus_client.parser import text_string_to_metric_families

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.version import server_version
from sluice.models.units import NS_PER_MS


def samples(metrics: ServerMetrics) -> dict[tuple[str, frozenset[str]], float]:
    """Values by name and the values of the labels."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def new_metrics() -> ServerMetrics:
    return ServerMetrics({"cascade:1": ["small", "large"]}, ["cpu0"], lambda: [("mlp:1", 3, 7)], lambda: 4096)


def key(name: str, *labels: str) -> tuple[str, frozenset[str]]:
    return f"sluice_{name}", frozenset(labels)


def test_requests_are_counted_by_outcome_and_answered_ones_are_timed() -> None:
    metrics = new_metrics()
    meter = metrics.meters.pipeline("cascade:1")
    meter.request_ended(Outcome.COMPLETED, 5 * NS_PER_MS)
    meter.request_ended(Outcome.COMPLETED, 6 * NS_PER_MS)
    meter.request_ended(Outcome.COMPLETED_LATE, 60_000 * NS_PER_MS)
    meter.request_ended(Outcome.REJECTED_DEADLINE, 0)
    meter.request_ended(Outcome.CANCELLED_CLIENT, 0)
    got = samples(metrics)
    assert got[key("requests_total", "cascade:1", "completed")] == 2
    assert got[key("requests_total", "cascade:1", "evicted_deadline")] == 0
    assert got[key("request_duration_seconds_bucket", "cascade:1", "0.005")] == 1
    assert got[key("request_duration_seconds_bucket", "cascade:1", "0.01")] == 2
    assert got[key("request_duration_seconds_bucket", "cascade:1", "30.0")] == 2
    assert got[key("request_duration_seconds_count", "cascade:1")] == 3
    assert got[key("request_duration_seconds_sum", "cascade:1")] == 60.011


def test_attainment_is_the_share_in_time_of_all_that_was_not_cancelled() -> None:
    metrics = new_metrics()
    meter = metrics.meters.pipeline("cascade:1")
    assert key("slo_attainment", "cascade:1") not in samples(metrics)
    meter.request_ended(Outcome.CANCELLED_CLIENT, 0)
    assert meter.attainment is None
    for outcome in (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.COMPLETED_LATE, Outcome.REJECTED_QUEUE_FULL):
        meter.request_ended(outcome, 0)
    assert samples(metrics)[key("slo_attainment", "cascade:1")] == 0.5


def test_batches_are_counted_by_model_partition_and_reason() -> None:
    metrics = new_metrics()
    batch = DispatchBatch(1, "cpu0", "mlp:1", 3, (Member(1, 0, 3),), ReleaseReason.FULL)
    metrics.meters.batch_completed(batch, 2 * NS_PER_MS)
    got = samples(metrics)
    assert got[key("batches_total", "mlp:1", "cpu0", "full")] == 1
    assert got[key("batch_rows_bucket", "mlp:1", "cpu0", "2.0")] == 0
    assert got[key("batch_rows_bucket", "mlp:1", "cpu0", "4.0")] == 1
    assert got[key("batch_rows_sum", "mlp:1", "cpu0")] == 3
    assert got[key("batch_compute_seconds_sum", "mlp:1", "cpu0")] == 0.002
    assert got[key("partition_busy_seconds_total", "cpu0")] == 0.002


def test_cost_is_summed_and_reported_for_a_thousand_good_requests() -> None:
    metrics = new_metrics()
    meter = metrics.meters.pipeline("cascade:1")
    meter.stage_ran(0, 3, 0.25)
    assert samples(metrics)[key("cost_total", "cascade:1")] == 0.25
    assert key("cost_per_1000_good_requests", "cascade:1") not in samples(metrics)
    meter.stage_ran(1, 1, 0.5)
    for outcome in (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.COMPLETED_LATE):
        meter.request_ended(outcome, 0)
    assert samples(metrics)[key("cost_per_1000_good_requests", "cascade:1")] == 375


def test_stages_queues_workers_and_memory_are_shown() -> None:
    metrics = new_metrics()
    metrics.meters.pipeline("cascade:1").stage_ran(0, 10)
    metrics.meters.pipeline("cascade:1").stage_ran(1, 2)
    got = samples(metrics)
    assert got[key("stage_rows_total", "cascade:1", "small")] == 10
    assert got[key("stage_rows_total", "cascade:1", "large")] == 2
    assert got[key("queue_requests", "mlp:1")] == 3
    assert got[key("queue_rows", "mlp:1")] == 7
    assert got[key("arena_used_bytes")] == 4096


def test_corrections_tell_how_far_profiles_are_off() -> None:
    metrics = ServerMetrics({}, [], queues=tuple, arena_bytes=int, corrections=lambda: [("mlp:1", "cpu1", 1.25)])
    assert samples(metrics)[key("latency_correction", "mlp:1", "cpu1")] == 1.25


def test_sizes_that_policies_have_learned_are_shown_of_the_latest_revision() -> None:
    learned = [("mlp:1", "cpu0", 8), ("mlp:1", "cpu1", 3)]
    metrics = ServerMetrics({}, [], queues=tuple, arena_bytes=int, learned=lambda: learned)
    assert samples(metrics)[key("batch_learned_rows", "mlp:1", "cpu0")] == 8
    assert samples(metrics)[key("batch_learned_rows", "mlp:1", "cpu1")] == 3


def test_the_version_and_the_build_of_the_core_are_shown() -> None:
    compiled = "true" if os.environ.get("SLUICE_TEST_BUILD") == "compiled" else "false"
    assert samples(new_metrics())[key("build_info", server_version(), compiled)] == 1
