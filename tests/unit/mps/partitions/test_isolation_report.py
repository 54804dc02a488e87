import msgspec
import pytest

from sluice.mps.partitions.isolation_report import (
    CUDA,
    Evidence,
    MpsFacts,
    ThreadAffinity,
    VisibleGpu,
    isolation_violations,
)
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition, ShareMode

UUID = "5d1f7b7a-9c1d-4b52-8b2a-0123456789ab"
CPU = CpuPartition("cpu0", (0, 1), hard_memory_mb=512)
HELD = Evidence((0, 1), (7,), 3, data_limit_bytes=512 << 20)
MIG = MigPartition("mig0", f"MIG-{UUID}", "2g.20gb")
SEEN = Evidence((0, 1, 2), (7,), 3, providers={"m:1": CUDA}, gpu=VisibleGpu(1, UUID, 32))
MPS = MpsPartition("mps0", f"GPU-{UUID}", 25, 1024)
CLIENT = msgspec.structs.replace(SEEN, mps=MpsFacts(client=True, multiprocessors=132))


@pytest.mark.parametrize(("partition", "evidence"), [(CPU, HELD), (MIG, SEEN), (MPS, CLIENT)])
def test_a_partition_whose_limits_hold_is_enforced(partition: Partition, evidence: Evidence) -> None:
    assert isolation_violations(partition, evidence) == []


@pytest.mark.parametrize(
    ("partition", "evidence", "changes", "reason"),
    [
        (CPU, HELD, {"cores": (0,)}, "the worker runs on cores 0, expected 0, 1"),
        (
            CPU,
            HELD,
            {"stray_threads": (ThreadAffinity("agent", 9, (0, 1, 2)), ThreadAffinity("agent", 10, (2,)))},
            "thread agent (9) and 1 more of 3 may run on cores 0, 1, 2, expected 0, 1",
        ),
        (CPU, HELD, {"threads": {"m:1": 2, "n:1": 4}}, "model n:1 runs on 4 threads, expected at most 2"),
        (CPU, HELD, {"data_limit_bytes": None}, "the worker's data has no limit, expected 512 MiB"),
        (CPU, HELD, {"data_limit_bytes": 64 << 20}, "the worker's data has a limit of 64 MiB, expected 512 MiB"),
        (
            MIG,
            SEEN,
            {"refusals": ("model m:1: this ONNX Runtime has no CUDAExecutionProvider",)},
            "model m:1: this ONNX Runtime has no CUDAExecutionProvider",
        ),
        (
            MIG,
            SEEN,
            {"providers": {"m:1": "CPUExecutionProvider"}},
            "model m:1 runs on CPUExecutionProvider, expected CUDAExecutionProvider",
        ),
        (MIG, SEEN, {"gpu": None}, "CUDA does not report the worker's device: no evidence"),
        (
            MIG,
            SEEN,
            {"gpu": VisibleGpu(2, "0", 32)},
            f"the worker sees 2 devices, the first of them 0, expected MIG-{UUID}",
        ),
        (
            MIG,
            SEEN,
            {"gpu": VisibleGpu(1, UUID, 132, name="NVIDIA H100 80GB HBM3 MIG 7g.80gb")},
            "the instance is a 7g.80gb, expected a 2g.20gb",
        ),
        (
            MPS,
            CLIENT,
            {"mps": MpsFacts(client=False, multiprocessors=132)},
            "the MPS daemon does not list the worker among its clients: CUDA runs without MPS",
        ),
        (MPS, CLIENT, {"mps": MpsFacts(trouble="no answer")}, "the MPS daemon does not list its clients: no answer"),
        (
            MPS,
            CLIENT,
            {"mps": MpsFacts(client=True, trouble="no end within 20 s")},
            "CUDA does not report the multiprocessors of the whole device, so the cap cannot be checked: "
            "no end within 20 s",
        ),
        (
            MPS,
            CLIENT,
            {"gpu": VisibleGpu(1, UUID, 34)},
            "the worker has 34 of 132 multiprocessors, expected at most 33 for 25 %",
        ),
    ],
)
def test_what_does_not_hold_is_reported(
    partition: Partition, evidence: Evidence, changes: dict[str, object], reason: str
) -> None:
    assert isolation_violations(partition, msgspec.structs.replace(evidence, **changes)) == [reason]


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3 MIG 2g.20gb", "NVIDIA H100 80GB HBM3 MIG 2g.19gb", "NVIDIA H100 80GB HBM3"]
)
def test_an_instance_of_the_profile_is_the_right_one_and_so_is_one_whose_name_does_not_tell(name: str) -> None:
    assert isolation_violations(MIG, msgspec.structs.replace(SEEN, gpu=VisibleGpu(1, UUID, 32, name=name))) == []


def test_a_share_that_is_no_cap_may_have_all_multiprocessors() -> None:
    elastic = msgspec.structs.replace(MPS, mode=ShareMode.ELASTIC)
    all_of_them = msgspec.structs.replace(CLIENT, gpu=VisibleGpu(1, UUID, 132))
    assert isolation_violations(elastic, all_of_them) == []
    assert isolation_violations(elastic, msgspec.structs.replace(all_of_them, mps=MpsFacts(client=True))) == []


def test_the_least_that_mps_grants_is_no_excess() -> None:
    tiny = msgspec.structs.replace(MPS, share_percent=1)
    assert isolation_violations(tiny, msgspec.structs.replace(CLIENT, gpu=VisibleGpu(1, UUID, 2))) == []


def test_the_host_cores_of_a_gpu_partition_count_where_they_are_given() -> None:
    hosted = msgspec.structs.replace(MIG, cores=(3,))
    assert isolation_violations(hosted, SEEN) == ["the worker runs on cores 0, 1, 2, expected 3"]
