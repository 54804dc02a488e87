"""Metrics of the load of pipelines, from a scheduler in virtual time."""

import asyncio

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.exposition import exposition
from sluice.gateway.observability.load_metrics import LoadMetrics
from sluice.gateway.observability.meters import Meters
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, arrival, completed, model, serving, single, spec_of, step

FLAT = LatencyTable.from_ms({1: 10, 2: 10, 4: 10})


def samples(scheduler: Scheduler, now_ns: int, headrooms: dict[str, float] | None = None) -> dict[str, float]:
    """Values by name, with the labels in order where there is more than the pipeline."""

    async def find_headrooms() -> dict[str, float]:
        return headrooms or {}

    source = LoadMetrics(scheduler, Meters({}, ["cpu0"]), lambda: now_ns, S, find_headrooms)
    asyncio.run(source.refresh())
    found = {}
    for family in text_string_to_metric_families(exposition(source.groups()).decode()):
        for sample in family.samples:
            found[" ".join((sample.name.removeprefix("sluice_"), *sample.labels.values()))] = sample.value
    return found


def one_model(slo_ns: int = 0) -> Scheduler:
    pipeline = msgspec.structs.replace(single("m:1"), slo_ns=slo_ns, percentile=99.9)
    return serving(spec_of([model("m:1", 2)], [pipeline]), FLAT)


def test_the_objective_is_the_pipelines_own_or_the_default() -> None:
    assert samples(one_model(), 0)["pipeline_objective_seconds m:1"] == 1
    own = samples(one_model(50 * MS), 0)
    assert own["pipeline_objective_seconds m:1"] == 0.05
    assert own["pipeline_objective_percentile m:1"] == 99.9


def test_the_wait_is_what_is_planned_on_the_partition_before_a_request() -> None:
    scheduler = one_model()
    assert samples(scheduler, 0)["pipeline_predicted_wait_seconds m:1"] == 0
    step(scheduler, 0, *(arrival(number, S, "m:1") for number in range(6)))
    got = samples(scheduler, 0)
    assert got["running_rows m:1 cpu0"] in (2, 4)  # one batch runs, and the next one may wait at the worker
    assert got["pipeline_in_flight_requests m:1"] == 6
    assert 0.029 < got["pipeline_predicted_wait_seconds m:1"] < 0.035
    assert 0.019 < samples(scheduler, 10 * MS)["pipeline_predicted_wait_seconds m:1"] < 0.025


def test_asking_changes_nothing() -> None:
    asked, other = one_model(), one_model()
    for now_ms in range(0, 60, 5):
        samples(asked, now_ms * MS)
        events = [arrival(100 * now_ms + number, now_ms * MS + 25 * MS, "m:1") for number in range(3)]
        assert step(asked, now_ms * MS, *events) == step(other, now_ms * MS, *events)


def test_a_model_on_no_partition_has_no_wait_and_headrooms_are_shown_as_given() -> None:
    scheduler = Scheduler(spec_of([model("m:1")], [single("m:1")]))
    got = samples(scheduler, 0, {"m:1": 3.5})
    assert "pipeline_predicted_wait_seconds m:1" not in got
    assert got["pipeline_headroom m:1"] == 3.5


def test_rows_run_until_their_batch_is_over() -> None:
    scheduler = one_model()
    step(scheduler, 0, arrival(1, S, "m:1"))
    assert samples(scheduler, 0)["running_rows m:1 cpu0"] == 1
    step(scheduler, 10 * MS, completed(1, 0, 10 * MS))
    assert samples(scheduler, 10 * MS)["pipeline_in_flight_requests m:1"] == 0
