import asyncio
import json

import msgspec

from sluice.batcher.interface.events import ModelLoaded, PartitionLost, PartitionReady
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.partitions.inventory import (
    Enforcement,
    Inventory,
    InventoryChange,
    LinkReport,
    PartitionStatus,
    ProcessDetails,
    WorkerRefused,
)
from sluice.gateway.partitions.partition_metrics import PartitionMetrics
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.isolation_report import Evidence, ThreadAffinity
from sluice.mps.partitions.partition import CpuPartition, MpsPartition
from tests.support.gateway.inventory import PlayedInventory, resized

TABLE = LatencyTable.from_ms({1: 1})
STRAYED = ProcessDetails(7, (1,), Evidence((1,), (7,), 1))
HELD = ProcessDetails(8, (0,), Evidence((0,), (8,), 1))
STRAYED_THREAD = Evidence((0,), (8,), 2, (ThreadAffinity("omp", 9, (0, 1)),))


def one_partition(*, strict: bool = False) -> Inventory:
    return Inventory([CpuPartition("cpu0", (0,))], strict=strict)


def ready(inventory: Inventory, details: ProcessDetails, *models: str) -> PartitionStatus:
    inventory.apply(PartitionReady("cpu0", dict.fromkeys(models, TABLE)), details)
    return inventory.statuses["cpu0"]


def changes(inventory: Inventory) -> list[InventoryChange]:
    """The events that subscribers get from now on."""
    seen: list[InventoryChange] = []
    inventory.subscribe(seen.append)
    return seen


def test_a_partition_is_what_its_worker_proves() -> None:
    known = one_partition()
    assert known.enforced() == {}
    status = ready(known, STRAYED)
    assert (status.worker, status.enforcement) == (7, Enforcement.UNENFORCED)
    assert status.reasons == ("the worker runs on cores 1, expected 0",)
    assert known.enforced() == {"cpu0": False}
    assert ready(known, HELD).reasons == ()
    assert known.enforced() == {"cpu0": True}


def test_of_a_worker_that_is_gone_nothing_is_known() -> None:
    known = one_partition()
    ready(known, HELD, "m:1")
    known.apply(PartitionLost("cpu0", "it was killed"))
    assert known.enforced() == {}
    status = known.statuses["cpu0"]
    assert (status.worker, status.enforcement, status.lost) == (None, Enforcement.UNKNOWN, "it was killed")
    assert (known.is_up("cpu0"), known.is_held("m:1"), known.loaded_ever) == (False, False, {"m:1"})


def test_a_status_is_shown_in_full() -> None:
    shown = json.loads(msgspec.json.encode(ready(one_partition(), STRAYED)))
    assert shown["partition"]["kind"] == "cpu"
    assert shown["evidence"]["cores"] == [1]
    assert shown["reasons"] == ["the worker runs on cores 1, expected 0"]


def test_a_model_that_is_loaded_later_may_cost_a_partition_its_proof() -> None:
    known = one_partition()
    ready(known, HELD)
    seen = changes(known)
    for _ in range(2):
        known.apply(ModelLoaded("cpu0", "m:1", TABLE), ProcessDetails(evidence=STRAYED_THREAD))
    status = known.statuses["cpu0"]
    assert (status.worker, status.enforcement) == (8, Enforcement.UNENFORCED)
    assert status.reasons == ("thread omp (9) of 2 may run on cores 0, 1, expected 0",)
    assert [(each.shortfalls, each.loaded_first) for each in seen] == [([*status.reasons], True), ([], False)]


def test_a_report_has_the_models_that_are_held() -> None:
    known = Inventory([CpuPartition("cpu0", (0,))], memory_of=lambda name: {f"of-{name}:1": 4096})
    ready(known, HELD)
    (shown,) = json.loads(msgspec.json.encode(known.report()))
    assert (shown["worker"], shown["models"]) == (8, {"of-cpu0:1": 4096})


def test_memory_usage_is_by_model_and_device() -> None:
    gpus = [MpsPartition(f"mps{number}", f"GPU-{number // 2}", 50) for number in range(3)]
    memory = {
        "cpu0": {"m:1": 10},
        "cpu1": {"m:1": 10},
        "mps0": {"m:1": 5},
        "mps1": {"n:2": 7, "m:1": 5},
        "mps2": {"n:2": 7},
    }
    cores = [CpuPartition("cpu0", (0,)), CpuPartition("cpu1", (1,))]
    known = Inventory([*cores, *gpus], memory_of=lambda name: memory[name])
    gpu = {"type": "GPU", "id": 0}
    assert known.memory_usage() == {
        "m:1": [{"type": "CPU", "id": 0, "byte_size": 20}, {**gpu, "byte_size": 10}],
        "n:2": [{**gpu, "byte_size": 7}, {"type": "GPU", "id": 1, "byte_size": 7}],
    }


def test_a_partition_that_is_resized_is_up_all_the_time() -> None:
    known = one_partition()
    ready(known, HELD, "m:1")
    resized(known, CpuPartition("cpu0", (0, 1)))
    status = known.statuses["cpu0"]
    assert (status.profile_kind, status.worker, status.enforcement.value) == ("cpu2", 1, "enforced")
    assert (known.is_up("cpu0"), known.holders("m:1"), known.losses("cpu0")) == (True, ["cpu0"], 0)


def test_a_strict_server_does_not_use_a_worker_that_does_not_prove_its_partition() -> None:
    known = one_partition(strict=True)
    seen = changes(known)
    ready(known, STRAYED, "m:1")
    assert known.refusal == "partition cpu0 is unenforced: the worker runs on cores 1, expected 0"
    assert (known.refused.is_set(), known.in_service.is_set(), known.is_held("m:1")) == (True, False, False)
    assert [(each.event, each.loaded) for each in seen] == [(WorkerRefused("cpu0"), ())]
    known = one_partition(strict=True)
    ready(known, HELD)
    assert (known.refused.is_set(), known.in_service.is_set()) == (False, True)
    known.apply(ModelLoaded("cpu0", "m:1", TABLE), ProcessDetails(evidence=STRAYED_THREAD))
    assert known.refused.is_set()


def test_partitions_are_in_service_when_all_are_up_at_once_and_then_while_any_is() -> None:
    known = PlayedInventory("a", "b", servers=["triton"])
    known.partition_ready("a")
    known.partition_lost("triton", "connection refused")  # a server that others start is not waited for
    known.partition_lost("a")
    known.partition_ready("b")
    assert (known.is_serving, known.in_service.is_set()) == (False, False)
    known.partition_ready("a")
    assert (known.is_serving, known.in_service.is_set()) == (True, True)
    known.partition_lost("a")
    assert known.is_serving
    known.partition_lost("b")
    assert not known.is_serving
    known.partition_ready("triton")
    assert known.is_serving


def test_slots_that_may_be_empty_are_not_waited_for() -> None:
    kinds = {"edge-0": "cpu1", "edge-1": "cpu1"}
    known = Inventory([], remote=kinds, vacant=["edge-1"])
    assert not known.is_serving
    known.apply(PartitionReady("edge-0", {}))
    assert known.is_serving
    known.apply(PartitionLost("edge-0", "gone"))
    assert not known.is_serving


def test_a_server_whose_partitions_are_started_for_requests_serves_without_any() -> None:
    known = Inventory([], remote={"edge-0": "cpu1"}, vacant=["edge-0"], starts_on_demand=True)
    assert (known.any_up, known.is_serving, known.in_service.is_set()) == (True, True, True)


def test_the_reason_of_the_last_failure_is_kept_until_a_model_is_forgotten() -> None:
    known = PlayedInventory("a", "b")
    known.partition_ready("a", [], {"m:1": "torn"})
    known.partition_ready("b")
    known.model_load_failed("b", "m:1", "no memory")
    assert (known.failed, known.loaded_ever) == ({"m:1": "no memory"}, set())
    known.model_loaded("b", "m:1")
    known.model_unloaded("b", "m:1")
    assert (known.holders("m:1"), known.loaded_ever) == ([], {"m:1"})
    known.forget("m:1")
    assert (known.failed, known.loaded_ever) == ({}, set())


def test_a_task_that_waits_for_service_continues_with_it() -> None:
    async def main() -> None:
        known = PlayedInventory("a")
        waiting = asyncio.create_task(known.in_service.wait())
        await asyncio.sleep(0)
        known.partition_ready("a")
        assert await waiting

    asyncio.run(main())


# -- partitions of other machines

THERE = ProcessDetails(77, (3,), Evidence(cores=(3,)), CpuPartition("edge-0", (3,)), url="10.0.0.5:9001", node="n1")


def with_remote(*, strict: bool = False) -> Inventory:
    return Inventory([CpuPartition("cpu0", (0,))], remote={"edge-0": "cpu1", "edge-1": "cpu1"}, strict=strict)


def test_a_remote_worker_is_reported_with_its_node_and_the_way_there() -> None:
    inventory = with_remote()
    inventory.link_of = lambda node: LinkReport(0.2, 110.5) if node == "n1" else None
    inventory.apply(PartitionReady("edge-0", {"m:1": TABLE}, node="n1"), THERE)
    report = {each.partition.name: each for each in inventory.report()}
    edge = report["edge-0"]
    assert (edge.partition, edge.node, edge.url) == (CpuPartition("edge-0", (3,)), "n1", "10.0.0.5:9001")
    assert (edge.worker, edge.enforcement, edge.link) == (77, Enforcement.ENFORCED, LinkReport(0.2, 110.5))
    assert json.loads(msgspec.json.encode(report["edge-1"]))["partition"] == {"kind": "remote", "name": "edge-1"}
    assert inventory.nodes == {"edge-0": "n1"}


def test_what_belongs_to_this_machine_does_not_include_remote_workers() -> None:
    inventory = with_remote()
    inventory.apply(PartitionReady("edge-0", {}, node="n1"), THERE)
    inventory.apply(PartitionReady("cpu0", {}), HELD)
    assert inventory.partitions == [CpuPartition("cpu0", (0,))]
    assert inventory.processes == {"cpu0": 8}
    assert inventory.kinds == {"cpu0": "cpu1", "edge-0": "cpu1", "edge-1": "cpu1"}


def test_a_server_serves_without_the_workers_that_are_not_there_yet() -> None:
    inventory = with_remote()
    inventory.apply(PartitionReady("cpu0", {}), HELD)
    inventory.apply(PartitionLost("edge-0", "cannot be reached"), ProcessDetails(url="10.0.0.5:9001", was_up=False))
    assert not inventory.is_serving, "nothing is known of edge-1"
    inventory.apply(PartitionLost("edge-1", "no worker is placed there"), ProcessDetails(was_up=False))
    assert inventory.is_serving
    assert (inventory.is_vacant("edge-0"), inventory.is_vacant("edge-1")) == (False, True)
    assert (inventory.losses("edge-0"), inventory.losses("edge-1")) == (0, 0)


def test_a_lost_remote_worker_keeps_its_address_and_counts_once() -> None:
    inventory = with_remote()
    inventory.apply(PartitionReady("edge-0", {"m:1": TABLE}, node="n1"), THERE)
    lost = ProcessDetails(url="10.0.0.5:9001", node="n1")
    inventory.apply(PartitionLost("edge-0", "node n1: connection reset", is_node_lost=True), lost)
    status = inventory.statuses["edge-0"]
    assert (status.worker, status.lost, status.url) == (None, "node n1: connection reset", "10.0.0.5:9001")
    assert (inventory.losses("edge-0"), inventory.nodes, inventory.is_vacant("edge-0")) == (1, {}, False)


def test_a_remote_worker_without_proof_does_not_stop_a_strict_server() -> None:
    inventory = with_remote(strict=True)
    strayed = msgspec.structs.replace(THERE, evidence=Evidence(cores=(3, 4)))
    inventory.apply(PartitionReady("edge-0", {"m:1": TABLE}, node="n1"), strayed)
    assert inventory.statuses["edge-0"].enforcement is Enforcement.UNENFORCED
    assert not inventory.refused.is_set()


def test_a_vacant_slot_has_no_sample_of_readiness() -> None:
    inventory = with_remote()
    inventory.apply(PartitionLost("edge-0", "cannot be reached"), ProcessDetails(url="10.0.0.5:9001", was_up=False))
    inventory.apply(PartitionLost("edge-1", "no worker is placed there"), ProcessDetails(was_up=False))
    metrics = ServerMetrics({}, [], queues=list, arena_bytes=lambda: 0)
    metrics.include(PartitionMetrics(inventory))
    lines = metrics.exposition().decode().splitlines()
    ready = [line for line in lines if line.startswith('sluice_partition_ready{partition="edge')]
    assert ready == ['sluice_partition_ready{partition="edge-0"} 0.0']
