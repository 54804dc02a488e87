"""The scheduler gets samples of partitions that may be resized, and its orders are carried out."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import ResizePartition
from sluice.batcher.interface.events import AnyEvent, PartitionsSampled, ResizeFailed, SizesKnown
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.known_sizes import KnownSizes, Tables
from sluice.gateway.deployment.revision import Deployed
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.resizing.auto_resize import AutoResize
from sluice.gateway.resizing.resizing import CLIENT_REQUEST, ResizeCause, ResizeMetrics, Resizing
from sluice.models.errors import PartitionError
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry, model_hash, write_profile
from sluice.models.profiles.hardware import hardware_id
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Cell
from sluice.models.repository.scan import ModelEntry, entry_of_file
from sluice.mps.partitions.balance import BalanceSettings, ResizeTrigger
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, ShareMode
from tests.support.models.onnx_models import save_mlp
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

MS = 1_000_000
GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
TABLES: Tables = {"cpu1": {"m": LatencyTable.from_ms({1: 2})}, "cpu2": {"m": LatencyTable.from_ms({1: 1})}}


class Machine:
    """Five cores, one of a Triton server and one of a GPU's host; resizes are done at once, or are `broken`."""

    def __init__(self, *shares: MpsPartition, by: ResizeTrigger = ResizeTrigger.PLAN) -> None:
        gpu = MigPartition("gpu", "MIG-8f3a1c52-0000-4000-8000-000000000002", "2g", cores=(4,))
        self.inventory = Inventory([CpuPartition("a", (0,)), CpuPartition("b", (1,)), gpu, *shares])
        self.busy_ns = {"a": 0, "b": 0}
        self.events: list[tuple[float, AnyEvent]] = []
        self.orders: list[ResizePartition] = []
        self.broken: Exception | None = None
        self.under_way = False
        self.known: Tables = TABLES
        self.asked: list[int] = []
        self.auto = AutoResize(
            BalanceSettings(by, every_s=1.0),
            self.inventory,
            cast(Resizing, self),
            lambda: self.busy_ns,
            [3],
            cast(KnownSizes, self),
            lambda partition: PartitionConfig(partition.name, partition.profile_kind),
            self.report,
        )

    def report(self, event: AnyEvent) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))

    async def tables(self, partitions: Sequence[CpuPartition], most: int) -> Tables:
        self.asked.append(most)
        return self.known

    async def carry_out(self, order: ResizePartition) -> None:
        self.orders.append(order)
        if self.broken:
            raise self.broken

    async def run(self, seconds: float) -> None:
        running = asyncio.create_task(self.auto.run())
        await asyncio.sleep(seconds)
        running.cancel()

    @property
    def samples(self) -> list[tuple[float, PartitionsSampled]]:
        return [(at_s, event) for at_s, event in self.events if isinstance(event, PartitionsSampled)]

    @property
    def sizes(self) -> list[SizesKnown]:
        return [event for _, event in self.events if isinstance(event, SizesKnown)]


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.mps.partitions.cpu.available_cores", lambda: (0, 1, 2, 3, 4))


def test_a_sample_has_the_load_and_the_cores_of_partitions_and_the_unassigned_cores() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        running = asyncio.create_task(machine.run(2.5))
        await asyncio.sleep(0.5)
        machine.busy_ns["a"] += 250 * MS
        await running
        first, second, third = machine.samples
        assert first == (0.0, PartitionsSampled({"a": 0.0, "b": 0.0}, {"a": (0,), "b": (1,)}, (2,)))
        assert second == (1.0, PartitionsSampled({"a": 0.25, "b": 0.0}, {"a": (0,), "b": (1,)}, (2,)))
        assert third[1].busy == {"a": 0.0, "b": 0.0}

    run_virtual(main)


def test_of_the_shares_of_a_gpu_only_those_with_a_cap_have_a_size_but_all_count_as_promised() -> None:
    async def main(loop: VirtualLoop) -> None:
        shares = [MpsPartition("half", GPU, 50, 1000), MpsPartition("rest", GPU, 35, 1000, ShareMode.ELASTIC)]
        machine = Machine(*shares)
        await machine.run(0.5)
        ((_, sample),) = machine.samples
        assert (sample.shares, sample.unpromised) == ({GPU: {"half": 50}}, {GPU: 15})

    run_virtual(main)


def test_no_sample_is_taken_while_a_partition_is_being_resized() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        machine.under_way = True
        await machine.run(2.5)
        assert machine.samples == []

    run_virtual(main)


def test_the_latencies_at_other_sizes_are_reported_when_they_have_changed() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        running = asyncio.create_task(machine.run(3.5))
        await asyncio.sleep(1.5)
        machine.known = {}
        await running
        sizes = {name: tuple(PartitionConfig(name, f"cpu{size}") for size in (1, 2, 3)) for name in "ab"}
        assert machine.sizes == [SizesKnown(TABLES, sizes), SizesKnown({}, {})]
        assert machine.asked == [3] * 4

    run_virtual(main)


def test_where_load_decides_the_latencies_at_other_sizes_are_not_read() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine(by=ResizeTrigger.LOAD)
        await machine.run(2.5)
        assert machine.asked == []
        assert len(machine.samples) == 3

    run_virtual(main)


def order(partition: str) -> ResizePartition:
    figures: dict[str, float | tuple[str, ...]] = {"missed": ("m:1",), "busiest": 1.2}
    return ResizePartition(partition, (0, 2), (0,), ResizeTrigger.PLAN, "objective", figures)


def test_orders_are_carried_out_in_turn_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        for name in "ab":
            machine.auto.order(order(name))
        await machine.run(0.5)
        assert machine.orders == [order("a"), order("b")]
        assert not any(isinstance(event, ResizeFailed) for _, event in machine.events)

    caplog.set_level(logging.INFO)
    run_virtual(main)
    reported = [record.__dict__["fields"] for record in caplog.records if record.message == "partition to be resized"]
    figures = {"by": "plan", "reason": "objective", "missed": ("m:1",), "busiest": 1.2}
    assert reported == [{"partition": name, "cores": [0, 2], **figures} for name in "ab"]


@pytest.mark.parametrize("error", [PartitionError("the new worker was killed"), RuntimeError("out of order")])
def test_an_order_that_fails_is_reported_and_the_next_one_is_carried_out(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        machine.broken = error
        for name in "ab":
            machine.auto.order(order(name))
        await machine.run(0.5)
        failed = [event for _, event in machine.events if isinstance(event, ResizeFailed)]
        assert failed == [ResizeFailed(name, str(error)) for name in "ab"]

    run_virtual(main)
    assert caplog.text.count("a partition could not be resized") == 2


def test_resizes_are_counted_by_origin() -> None:
    (family,) = ResizeMetrics({("a", ResizeCause("plan", "cost")): 2, ("a", CLIENT_REQUEST): 1}).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"partition": "a", "by": "plan", "reason": "cost"}, 2),
        ({"partition": "a", "by": "client", "reason": "request"}, 1),
    ]


def profiled(directory: Path, *kinds: str) -> ModelEntry:
    entry = entry_of_file(save_mlp(directory / "mlp.onnx", [4, 3]), 1)
    cells = (Cell(1, 1000, 1100, 1200, 100),)
    stored = (
        ProfileEntry(
            fingerprint=hardware_id(),
            kind=kind,
            source=FigureSource.MEASURED,
            sha256=model_hash(entry.path),
            cells=cells,
        )
        for kind in kinds
    )
    write_profile(entry.path.with_name("mlp.profile.json"), ModelProfile(entries=tuple(stored)))
    return entry


@pytest.mark.parametrize(
    ("kinds", "known"),
    [
        ((), set()),
        (("cpu1",), set()),
        (("cpu1", "cpu2", "cpu7", "mps-50"), {"cpu1", "cpu2"}),
        (("cpu2/x3", "cpu3/x3"), set()),
    ],
)
def test_sizes_are_known_where_profiles_have_two_that_there_could_be(
    kinds: tuple[str, ...], known: set[str], tmp_path: Path
) -> None:
    sizes = KnownSizes(DependencyGraph({"mlp": Deployed((profiled(tmp_path, *kinds),), ())}))
    tables = asyncio.run(sizes.tables([CpuPartition("a", (0,))], 4))
    assert tables.keys() == known
    assert all(by_key == {"mlp:1": LatencyTable(((1, 1000),))} for by_key in tables.values())
    assert asyncio.run(sizes.tables([CpuPartition("a", (0,))], 4)) is tables
