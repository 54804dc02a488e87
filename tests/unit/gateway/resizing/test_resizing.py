"""The shares that a partition may be given, by the protocol and by the command."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import ResizePartition
from sluice.gateway.cli.main import main
from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.rollout import Rollout
from sluice.gateway.deployment.worker_files import worker_files
from sluice.gateway.executors.mixed import MixedExecutor
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.resizing.resizing import CLIENT_REQUEST, ResizeCause, Resizing
from sluice.models.errors import NotFoundError, PartitionError, RequestError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import ModelFile
from sluice.mps.nvidia import free_memory
from sluice.mps.partitions.balance import ResizeTrigger
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition, ShareMode
from tests.support.gateway.inventory import resized
from tests.unit.gateway.cli.test_model import answering
from tests.unit.gateway.deployment.deployer_bench import Served, served
from tests.unit.gateway.instant_gateway import instant_gateway, post

GPU = "GPU-8f3a1c52-0000-4000-8000-000000000001"
CORES = CpuPartition("cpu0", (0,), memory_mb=100)
OTHER = CpuPartition("cpu1", (2,))
QUARTER = MpsPartition("quarter", GPU, 25, memory_mb=1000)
HALF = MpsPartition("half", GPU, 50, memory_mb=1000)
STATIC = MpsPartition("static", GPU.replace("8", "9"), 50, memory_mb=1000, mode=ShareMode.STATIC)
SLICE = MigPartition("slice", "MIG-8f3a1c52-0000-4000-8000-000000000002", "2g")


class Machine:
    """Cores 0 to 3, one of them Triton's, and a GPU, with workers that take over at once, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: str = "", free_mb: float = 4000) -> None:
        monkeypatch.setattr("sluice.mps.partitions.cpu.available_cores", lambda: (0, 1, 2, 3))
        monkeypatch.setattr(free_memory, "_free_mb", lambda partition: free_mb)
        self.failure = failure
        self.inventory = Inventory([CORES, OTHER, QUARTER, HALF, SLICE, STATIC])
        self.orders: list[tuple[Partition, PartitionConfig]] = []
        self.resizing = Resizing(
            self.inventory,
            DependencyGraph({}),
            cast(Rollout, self),
            cast(MixedExecutor, self),
            [CpuPartition("triton", (3,))],
            lambda partition: PartitionConfig(partition.name, partition.profile_kind),
        )

    def memory_of(self, partition: str) -> int:
        return 50 << 20

    async def resize(
        self, partition: Partition, config: PartitionConfig, tables: dict[str, LatencyTable], timeout_s: float
    ) -> None:
        if self.failure:
            raise PartitionError(self.failure)
        self.orders.append((partition, config))

    def ask(self, *share: Any) -> Partition:
        return asyncio.run(self.resizing.resize(*share))


def test_cores_and_shares_become_others_and_all_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.ask("cpu0", [1, 0]) == CpuPartition("cpu0", (0, 1), memory_mb=100)
    assert machine.ask("quarter", None, 50) == MpsPartition("quarter", GPU, 50, memory_mb=1000)
    assert [config.kind for _, config in machine.orders] == ["cpu2", "mps-50"]
    assert machine.resizing.done == {("cpu0", CLIENT_REQUEST): 1, ("quarter", CLIENT_REQUEST): 1}


def test_nothing_happens_when_it_is_so_already(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.ask("cpu0", [0, 0]) == CORES
    assert machine.orders == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (("cpu0", [0, 2]), "partition cpu0: core 2 already belongs to partition cpu1"),
        (("cpu0", [0, 3]), "partition cpu0: core 3 already belongs to partition triton"),
        (("cpu0", [0, 4]), "partition cpu0: core 4 is not available; expected some of [0, 1, 2, 3]"),
        (("cpu0", None, 40), "partition cpu0 is a set of cores; expected 'cores' alone, such as [0, 1]"),
        (("cpu0",), "partition cpu0 is a set of cores; expected 'cores' alone, such as [0, 1]"),
        (("quarter", [0]), "partition quarter is a share of a GPU; expected 'share_percent' alone, such as 40"),
        (("quarter", None, 101), "'share_percent' must be from 1 to 100, got 101"),
        (
            ("quarter", None, 60),
            f"{GPU}: 110 % are requested (50 % for half, 60 % for quarter), 100 % are free",
        ),
        (("static", None, 40), "partition static is a static set of multiprocessors, which has one size"),
        (("slice", None, 40), "partition slice is a MIG instance, which has one size; apply another layout"),
    ],
)
def test_a_share_that_cannot_be_had_is_refused(
    asked: tuple[Any, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    with pytest.raises(RequestError) as refusal:
        machine.ask(*asked)
    assert str(refusal.value) == reason
    assert machine.orders == []


def test_a_partition_of_another_name_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match=r"no partition 'gpu9' .* one of cpu0, cpu1, quarter, half, slice, static"):
        Machine(monkeypatch).ask("gpu9", [0])


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [(("cpu0", [0, 1]), "50 MiB of memory beside the running worker; 40 MiB"), (("quarter", None, 30), "1000 MiB")],
)
def test_a_hand_over_takes_no_memory_that_is_not_free(
    asked: tuple[Any, ...], numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match=f"the new worker needs {numbers}"):
        Machine(monkeypatch, free_mb=40).ask(*asked)


def ordered(held: tuple[int, ...] | int, before: tuple[int, ...] | int) -> ResizePartition:
    name = "quarter" if isinstance(held, int) else "cpu0"
    return ResizePartition(name, held, before, ResizeTrigger.LOAD, "busy", {})


def test_an_order_of_the_scheduler_is_carried_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    asyncio.run(machine.resizing.carry_out(ordered((0, 1), (0,))))
    asyncio.run(machine.resizing.carry_out(ordered(35, 25)))
    assert [config.kind for _, config in machine.orders] == ["cpu2", "mps-35"]
    assert machine.resizing.done == {(name, ResizeCause("load", "busy")): 1 for name in ("cpu0", "quarter")}


def test_an_order_for_a_partition_that_was_resized_meanwhile_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    for order in (ordered((0, 1), (0, 1, 3)), ordered(35, 30)):
        with pytest.raises(PartitionError, match="was resized meanwhile"):
            asyncio.run(machine.resizing.carry_out(order))
    assert machine.orders == []


def test_a_new_worker_that_cannot_take_over_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, failure="model m does not load there: out of memory")
    with pytest.raises(PartitionError) as failure:
        machine.ask("cpu0", [0, 1])
    assert str(failure.value) == "partition cpu0 stays as it is: model m does not load there: out of memory"


@served
async def test_a_model_that_is_prepared_meanwhile_gets_the_profiles_of_the_new_share(
    gateway: Served, repository: Path
) -> None:
    kinds: list[list[str]] = []

    def files(*arguments: Any) -> dict[str, dict[str, ModelFile]]:
        kinds.append(list(arguments[-1].values()))
        if len(kinds) == 1:
            resized(gateway.inventory, CpuPartition("cpu0", (0, 1)))
        return worker_files(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.gateway.deployment.rollout.worker_files", files)
        await gateway.deployer.load("m")
    assert kinds == [["cpu1"], ["cpu2"]]
    assert gateway.keys == ["m:1@1"]


def test_clients_resize_by_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    served = instant_gateway(resizing=Machine(monkeypatch).resizing)
    path = "/v2/sluice/partitions/cpu0/resize"
    reply = post(served, path, {"cores": [0, 1]})
    assert (reply.status, reply.json["cores"]) == (200, [0, 1])
    assert post(served, "/v2/sluice/partitions/gpu9/resize", {"cores": [0]}).status == 404
    for body, reason in (
        ({"cores": "0"}, "'cores' must be a list of core numbers, such as [0, 1], got '0'"),
        ({"cores": [True]}, "'cores' must be a list of core numbers, such as [0, 1], got [True]"),
        ({"cores": []}, "'cores' must be a list of core numbers, such as [0, 1], got []"),
        ({"share_percent": 2.5}, "'share_percent' must be a whole number, such as 40, got 2.5"),
        ({"core": [0]}, "'core' is unknown; expected 'cores' or 'share_percent'"),
        ({"cores": [4]}, "partition cpu0: core 4 is not available; expected some of [0, 1, 2, 3]"),
    ):
        refused = post(served, path, body)
        assert (refused.status, refused.json) == (400, {"error": reason})


def test_clients_that_ask_for_what_others_have_get_the_numbers_as_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    served = instant_gateway(resizing=Machine(monkeypatch).resizing)
    for name, body, reason in (
        ("cpu0", {"cores": [0, 2]}, "partition cpu0: core 2 already belongs to partition cpu1"),
        (
            "quarter",
            {"share_percent": 70},
            f"{GPU}: 120 % are requested (50 % for half, 70 % for quarter), 100 % are free",
        ),
    ):
        refused = post(served, f"/v2/sluice/partitions/{name}/resize", body)
        assert (refused.status, refused.json) == (409, {"error": reason})


def test_the_first_request_finds_all_routes_made(monkeypatch: pytest.MonkeyPatch) -> None:
    served = instant_gateway(resizing=Machine(monkeypatch).resizing)
    served.make_app()
    made: list[object] = []
    monkeypatch.setattr(TypeAdapter, "__init__", lambda *arguments, **named: made.append(arguments))
    assert post(served, "/v2/sluice/partitions/cpu0/resize", {"cores": [0, 1]}).status == 200
    assert made == []


def test_the_right_to_resize_can_be_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    restrictions = Restrictions([RestrictedSettings((ApiGroup.PARTITIONS,), "admin-key", "s3cret")])
    served = instant_gateway(resizing=Machine(monkeypatch).resizing, restrictions=restrictions)
    path = "/v2/sluice/partitions/cpu0/resize"
    assert post(served, path, {"cores": [0, 1]}).status == 403
    assert post(served, path, {"cores": [0, 1]}, headers={"admin-key": "s3cret"}).status == 200


def test_the_command_tells_where_the_partition_serves(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.dumps({"kind": "cpu", "name": "cpu0", "cores": [0, 1]}).encode()
    with answering(answer) as url:
        assert main(["partitions", "resize", "cpu0", "--cores", "0,1", "--url", url]) == 0
    assert capsys.readouterr().out == "cpu0: serves on cores 0,1\n"
    answer = json.dumps({"kind": "mps", "name": "half", "uuid": GPU, "share_percent": 50}).encode()
    with answering(answer) as url:
        assert main(["partitions", "resize", "half", "--share", "50", "--url", url]) == 0
    assert capsys.readouterr().out == "half: serves on mps-50\n"


def test_the_command_tells_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'{"error": "core 2 already belongs to partition cpu1"}', 400) as url:
        assert main(["partitions", "resize", "cpu0", "--cores", "2", "--url", url]) == 2
    assert capsys.readouterr().err == f"sluice: {url}: core 2 already belongs to partition cpu1\n"
    with pytest.raises(SystemExit):
        main(["partitions", "resize", "cpu0", "--cores", "all"])
    assert "expected core numbers such as 0,1, got 'all'" in capsys.readouterr().err
