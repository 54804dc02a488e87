"""Metrics of plans: those that could not be built, and batches that could not follow theirs."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.runtime.plan_building import PlanFailure
from sluice.models.spec import public_key


class PlanMetrics(MetricsSource):
    """The plans of a scheduler: `failures` tells how many could not be built, by reason."""

    def __init__(self, scheduler: Scheduler, failures: Callable[[], Mapping[PlanFailure, int]]) -> None:
        self._scheduler = scheduler
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        """Both families."""
        failures = CounterMetricFamily(
            "sluice_plan_failures",
            "Plans, or their parts for a pipeline, that were not built by reason: error, or time where the planner "
            "took too long; the plan before stays.",
            labels=["reason"],
        )
        counted = self._failures()
        for reason in PlanFailure:
            failures.add_metric([reason], counted.get(reason, 0))
        yield failures
        fallbacks = CounterMetricFamily(
            "sluice_plan_fallbacks",
            "Batches of the pipeline that could not follow their plan, since none of its partitions was up or in time.",
            labels=["pipeline"],
        )
        totals = Counter[str]()  # of all revisions of a pipeline
        for pipeline, count in self._scheduler.dispatcher.rules.fallbacks.items():
            totals[public_key(pipeline)] += count
        for name, count in totals.items():
            fallbacks.add_metric([name], count)
        yield fallbacks
