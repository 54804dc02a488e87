import os

import pytest

from sluice.models.errors import PartitionError
from sluice.mps.isolation.pinning import pin_to_cores, worker_environment
from sluice.mps.partitions import cpu
from sluice.mps.partitions.cpu import available_cores, check_partitions, default_partitions, spare_cores, usable_cores
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 6, 7})
    monkeypatch.setattr(cpu, "cpu_quota", lambda: None)


@pytest.mark.usefixtures("six_cores")
def test_by_default_each_core_is_a_partition() -> None:
    assert default_partitions() == tuple(
        CpuPartition(f"cpu{index}", (core,)) for index, core in enumerate((0, 1, 2, 5, 6, 7))
    )


@pytest.mark.usefixtures("six_cores")
def test_fewer_partitions_share_all_cores_evenly() -> None:
    assert [partition.cores for partition in default_partitions(2)] == [(0, 1, 2), (5, 6, 7)]
    assert [partition.cores for partition in default_partitions(4)] == [(0,), (1, 2), (5,), (6, 7)]
    assert default_partitions(1)[0].profile_kind == "cpu6"


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize(("quota", "count"), [(None, 6), (6.0, 6), (9.5, 6), (2.9, 2), (1.0, 1), (0.5, 1), (0.01, 1)])
def test_by_default_there_are_as_many_partitions_as_the_cgroup_allows_whole_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, count: int
) -> None:
    monkeypatch.setattr(cpu, "cpu_quota", lambda: quota)
    partitions = default_partitions()
    assert len(partitions) == count
    assert all(len(each.cores) == 1 for each in partitions)
    check_partitions(partitions)


@pytest.mark.usefixtures("six_cores")
def test_containers_of_one_machine_begin_at_different_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "cpu_quota", lambda: 2.0)
    sets = set()
    for number in range(40):
        monkeypatch.setattr(cpu, "cgroup_names", lambda number=number: f"0::/pod{number}")
        sets.add(usable_cores())
        assert usable_cores() == usable_cores()
    assert {core for cores in sets for core in cores} == {0, 1, 2, 5, 6, 7}
    assert all(len(cores) == 2 for cores in sets)


@pytest.mark.usefixtures("six_cores")
def test_a_number_of_partitions_shares_what_the_cgroup_allows_or_has_a_core_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "cpu_quota", lambda: 4.0)
    assert [len(each.cores) for each in default_partitions(2)] == [2, 2]
    assert [each.cores for each in default_partitions(5)] == [(0,), (1,), (2,), (5,), (6,)]


@pytest.mark.usefixtures("six_cores")
def test_cores_are_spare_as_far_as_the_cgroup_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spare_cores({0, 1}) == (2, 5, 6, 7)
    monkeypatch.setattr(cpu, "usable_cores", lambda: (2, 5, 6))
    assert spare_cores({0, 1}) == (2,)
    assert spare_cores({0, 1, 2, 5}) == ()


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize("count", [0, 7, -1])
def test_a_count_of_partitions_that_the_cores_cannot_carry_is_refused(count: int) -> None:
    with pytest.raises(PartitionError, match=f"partitions: expected 1 to 6, one for each core, got {count}"):
        default_partitions(count)


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (CpuPartition("a", (1,)), "partition a: the name is used twice"),
        (CpuPartition("b", ()), "partition b: it has no cores"),
        (CpuPartition("b", (1, 0)), "partition b: core 0 already belongs to partition a"),
        (CpuPartition("b", (1, 1)), r"partition b: cores \[1, 1\]: expected each core once"),
        (CpuPartition("b", (3,)), r"partition b: core 3 is not available; expected some of \[0, 1, 2, 5, 6, 7\]"),
    ],
)
def test_partitions_that_cannot_be_are_named(second: CpuPartition, reason: str) -> None:
    with pytest.raises(PartitionError, match=reason):
        check_partitions([CpuPartition("a", (0,)), second])


def test_the_default_partitions_pass_the_check() -> None:
    check_partitions(default_partitions())


def test_a_slowed_partition_is_of_a_kind_of_its_own() -> None:
    assert CpuPartition("cpu0", (0, 1), slowdown=1).profile_kind == "cpu2"
    assert CpuPartition("cpu0", (0,), slowdown=3).profile_kind == "cpu1/x3"
    assert CpuPartition("cpu0", (0, 1), slowdown=1.5).profile_kind == "cpu2/x1.5"


def test_pinning_reports_what_the_kernel_says() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    try:
        assert pin_to_cores([last]) == (last,)
        assert available_cores() == (last,)
    finally:
        os.sched_setaffinity(0, before)


def test_pinning_to_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"cannot pin to cores \[1000\]"):
        pin_to_cores([1000])


@pytest.mark.usefixtures("six_cores")
def test_host_cores_of_gpu_partitions_may_be_anybodys_but_have_to_be_there() -> None:
    check_partitions([CpuPartition("a", (0,)), MigPartition("b", "MIG-1", "1g", cores=(0, 1))])
    with pytest.raises(PartitionError, match="partition b: core 3 is not available"):
        check_partitions([MpsPartition("b", "GPU-1", 10, cores=(3,))])
    with pytest.raises(PartitionError, match=r"partition b: cores \[0, 0\]: expected each core once"):
        check_partitions([MpsPartition("b", "GPU-1", 10, cores=(0, 0))])


def test_array_libraries_of_a_worker_have_one_thread() -> None:
    assert worker_environment(CpuPartition("cpu0", (0,))) == dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    )


def test_a_worker_on_a_mig_instance_sees_that_alone_and_no_mps_daemon() -> None:
    variables = worker_environment(MigPartition("mig0", "MIG-1", "1g.10gb"))
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["CUDA_MPS_PIPE_DIRECTORY"]) == ("MIG-1", "/nonexistent")


def test_a_worker_under_mps_has_its_share_of_its_device() -> None:
    variables = worker_environment(MpsPartition("mps0", "GPU-1", 25, 1024))
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"
    assert variables["OMP_NUM_THREADS"] == "1"
