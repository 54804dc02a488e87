"""Metrics of models that come and go on demand."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sluice.batcher.interface.events import ModelLoaded, PartitionReady
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.deployment.residency_metrics import Held, ResidencyMetrics, held_memory
from sluice.gateway.observability.exposition import exposition
from sluice.models.profiles.measurement import ModelMemory
from tests.support.scheduling.builders import MS, ONE, S, arrival, chain, completed, step
from tests.unit.batcher.residency.test_on_demand import demanded, up


def exposed(scheduler: Scheduler) -> dict[str, list[Sample]]:
    text = exposition(ResidencyMetrics(scheduler).groups()).decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_loads_are_counted_by_what_they_were_for() -> None:
    pipelines = (chain("a", "b"),)
    scheduler = up(
        demanded(*"abcde", memory=6, pipelines=(*demanded(*"acd").pipelines, *pipelines), pinned="e"), cpu0="a"
    )
    step(scheduler, 1)
    step(scheduler, MS, arrival(1, S, "chain:1"), arrival(2, S, "c"), arrival(3, MS, "d"))
    step(scheduler, 20 * MS, *(ModelLoaded("cpu0", key, ONE) for key in "ebcd"))
    samples = [sample for family in exposed(scheduler).values() for sample in family]
    loads = {sample.labels["cause"]: sample.value for sample in samples if sample.name == "sluice_model_loads_total"}
    assert loads == {"request": 1, "prewarm": 1, "replica": 0, "refused": 1, "pinned": 1}
    assert {sample.name: sample.value for sample in samples if not sample.labels.keys() & {"cause", "outcome"}} == {
        "sluice_partition_models": 5,
        "sluice_model_memory_bytes": 1,
        "sluice_partition_free_bytes": 1,
        "sluice_model_evictions_total": 0,
        "sluice_model_prewarm_idle_seconds_total": 0,
        "sluice_model_prewarm_wait_seconds_total": 0,
    }


def test_loads_for_later_stages_are_counted_by_how_they_end() -> None:
    scheduler = up(demanded(*"abc", memory=3, pipelines=(chain("a", "b", "c"),)), cpu0="a")
    step(scheduler, 0, arrival(1, S, "chain:1"))
    step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE))
    step(scheduler, 25 * MS, completed(1, 0, 25 * MS))
    step(scheduler, 26 * MS, completed(2, 25 * MS, 26 * MS))
    step(scheduler, 30 * MS, ModelLoaded("cpu0", "c", ONE))
    families = exposed(scheduler)
    ends = {sample.labels["outcome"]: sample.value for sample in families["sluice_model_prewarms"]}
    assert ends == {"hit": 1, "late": 1, "missed": 0, "lost": 0}
    assert [sample.value for sample in families["sluice_model_prewarm_idle_seconds"]] == [0.015]
    assert [sample.value for sample in families["sluice_model_prewarm_wait_seconds"]] == [0.004]


def test_choices_of_instance_policies_are_counted_by_whether_the_partition_held_the_model() -> None:
    spec = demanded(*"ab")
    assert "sluice_instance_choices" not in exposed(up(spec))
    models = tuple(
        msgspec.structs.replace(each, instances=InstanceConfig(InstanceRule.BALANCE)) for each in spec.models
    )
    scheduler = up(msgspec.structs.replace(spec, models=models), cpu0="a")
    step(scheduler, 1, arrival(1, S, "a"))
    step(scheduler, 2 * MS, completed(1, 0, 2 * MS), arrival(2, S, "b"))
    families = exposed(scheduler)
    chosen = {sample.labels["start"]: sample.value for sample in families["sluice_instance_choices"]}
    assert chosen == {"warm": 1, "cold": 1}
    assert [sample.value for sample in families["sluice_instance_steals"]] == [0]


def test_the_memory_of_models_is_reported_with_its_source() -> None:
    mib = 1 << 20
    spec = demanded(*"abc", memory=100 * mib)
    measured, *others = spec.models
    unknown = [msgspec.structs.replace(each, footprints={}, memory_bytes=3 * mib) for each in others]
    scheduler = up(msgspec.structs.replace(spec, models=(measured, *unknown)))
    memory = {"a": ModelMemory(50 * mib), "b": ModelMemory(9 * mib, mib), "c": ModelMemory(2 * mib)}
    step(scheduler, 1, PartitionReady("cpu0", dict.fromkeys("abc", ONE), memory))
    held = {"a": Held(1, "profile"), "b": Held(10 * mib, "load"), "c": Held(3 * mib, "file")}
    assert held_memory(scheduler, "cpu0") == held
    families = exposed(scheduler)
    assert [(sample.labels, sample.value) for sample in families["sluice_model_memory_bytes"]] == [
        ({"model": key, "kind": "cpu1", "source": source}, memory_bytes) for key, (memory_bytes, source) in held.items()
    ]
    assert [sample.value for sample in families["sluice_partition_free_bytes"]] == [87 * mib - 1]
