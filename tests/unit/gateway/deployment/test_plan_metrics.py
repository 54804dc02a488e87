"""Metrics of plans that were not built, and of batches that could not follow theirs."""

from sluice.gateway.deployment.plan_metrics import PlanMetrics
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.runtime.plan_building import PlanFailure
from tests.support.scheduling.builders import ONE, model, serving, spec_of


def test_revisions_of_a_pipeline_count_together() -> None:
    scheduler = serving(spec_of([model("m:1")]), ONE)
    scheduler.dispatcher.rules.fallbacks.update({"m:1": 2, "n:1": 1})
    metrics = ServerMetrics({"m:1": ["m"]}, ["cpu0"], tuple, lambda: 0)
    metrics.include(PlanMetrics(scheduler, lambda: {PlanFailure.TIME: 3}))
    text = metrics.exposition().decode()
    assert 'sluice_plan_failures_total{reason="time"} 3.0' in text
    assert 'sluice_plan_failures_total{reason="error"} 0.0' in text
    assert 'sluice_plan_fallbacks_total{pipeline="m:1"} 2.0' in text
