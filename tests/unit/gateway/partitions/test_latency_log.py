"""Log lines about latencies that do not fit objectives, or each other."""

import pytest

from sluice.batcher.interface.config import PipelineConfig, StageConfig
from sluice.batcher.interface.events import ModelLoaded, PartitionReady, PartitionResized
from sluice.gateway.partitions.inventory import Inventory, ProcessDetails
from sluice.gateway.partitions.latency_log import LatencyLog
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition
from tests.support.scheduling.builders import single

UP = ProcessDetails(1, (0,), Evidence((0,)))


class Bench:
    def __init__(self, caplog: pytest.LogCaptureFixture, *pipelines: PipelineConfig) -> None:
        self._caplog = caplog
        self.pipelines = pipelines
        self.inventory = Inventory([CpuPartition("cpu0", (0,))])
        self.inventory.subscribe(LatencyLog(lambda: self.pipelines, 100).changed)

    def lines(self) -> list[tuple[str, str, dict[str, object]]]:
        lines = [(record.levelname, record.getMessage(), record.__dict__["fields"]) for record in self._caplog.records]
        self._caplog.clear()
        return lines


def in_time(name: str, slo_ms: int, *models: str) -> PipelineConfig:
    return PipelineConfig(name, (StageConfig("only", models[0], variants=models),), slo_ns=slo_ms * NS_PER_MS)


def too_long(pipeline: str, model: str, took_ms: float, objective_ms: float) -> tuple[str, str, dict[str, object]]:
    fields = {"pipeline": pipeline, "model": model, "partition": "cpu0"}
    return (
        "WARNING",
        "every batch takes longer than the objective",
        {**fields, "took_ms": took_ms, "objective_ms": objective_ms},
    )


def test_a_model_that_cannot_meet_an_objective_is_logged_for_each_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog, single("m:1"), in_time("fast", 20, "m:1", "n:1"), in_time("slow", 30, "m:1"))
    tables = {"m:1": LatencyTable.from_ms({1: 30, 8: 200}), "n:1": LatencyTable.from_ms({4: 20})}
    bench.inventory.apply(PartitionReady("cpu0", tables), UP)
    assert bench.lines() == [too_long("fast", "m:1", 30, 20)]
    larger = PartitionResized("cpu0", "cpu2", 1.0, 1.0, {"m:1": LatencyTable.from_ms({2: 101})})
    bench.inventory.apply(larger, ProcessDetails(1, (0, 1), Evidence((0, 1)), resized=CpuPartition("cpu0", (0, 1))))
    assert bench.lines() == [
        too_long("m:1", "m:1", 101, 100),
        too_long("fast", "m:1", 101, 20),
        too_long("slow", "m:1", 101, 30),
    ]


def test_pipelines_that_come_later_count_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.inventory.apply(PartitionReady("cpu0", {}), UP)
    bench.pipelines = (in_time("new", 1, "m:1"),)
    bench.inventory.apply(ModelLoaded("cpu0", "m:1", LatencyTable.from_ms({1: 2})), ProcessDetails())
    assert bench.lines() == [too_long("new", "m:1", 2, 1)]


def test_a_larger_batch_that_takes_clearly_less_time_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    by_chance = LatencyTable(((1, 120_000), (2, 80_000), (4, 7_000)))
    odd = LatencyTable(((1, 3_000_000), (2, 5_000_000), (4, 2_000_000), (8, 1_000_000)))
    bench.inventory.apply(PartitionReady("cpu0", {"m:1": by_chance, "n:1": odd}), UP)
    fields = {"model": "n:1", "partition": "cpu0", "rows": 4, "took_ms": 2.0}
    assert bench.lines() == [
        (
            "WARNING",
            "a larger batch takes less time than a smaller one",
            {**fields, "smaller_rows": 2, "smaller_took_ms": 5.0},
        )
    ]
