import pytest

from sluice.models.errors import InfeasibleLayout
from sluice.mps.partitions.capacity_check import HOST, FreeCapacity, check_capacity
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition, ShareMode

GPU, MIG = "GPU-0", "MIG-0"


def share(name: str, percent: int, memory_mb: float = 1024, mode: ShareMode = ShareMode.HARD) -> MpsPartition:
    return MpsPartition(name, GPU, percent, memory_mb, mode)


def test_shares_that_fit_are_let_through() -> None:
    check_capacity([share("a", 60), share("b", 40, mode=ShareMode.ELASTIC)], {GPU: FreeCapacity(100, 2048)})
    check_capacity(
        [CpuPartition("c", (0,), hard_memory_mb=512), CpuPartition("d", (1,))], {HOST: FreeCapacity(100, 512)}
    )
    check_capacity([share("a", 100), MpsPartition("b", "GPU-1", 100)], {})


def test_a_share_that_is_not_guaranteed_takes_nothing_from_the_others() -> None:
    check_capacity([share("a", 100), share("b", 50, mode=ShareMode.UNCAPPED)], {})


@pytest.mark.parametrize(
    ("partitions", "free", "reason"),
    [
        (
            [share("a", 60), share("b", 50, mode=ShareMode.ELASTIC)],
            {},
            "GPU-0: 110 % are requested (60 % for a, 50 % for b), 100 % are free",
        ),
        (
            [share("a", 50, mode=ShareMode.STATIC), share("b", 50)],
            {},
            "GPU-0: partition b is hard, other partitions are not; expected mode static for all "
            "partitions of a device, or for none",
        ),
        ([share("a", 30)], {GPU: FreeCapacity(20)}, "GPU-0: 30 % are requested (30 % for a), 20 % are free"),
        (
            [share("a", 10, 3000), share("b", 10, 2000)],
            {GPU: FreeCapacity(100, 4096)},
            "GPU-0: 5000 MiB of memory are requested (3000 MiB for a, 2000 MiB for b), 4096 MiB are free",
        ),
        (
            [share("a", 10), MpsPartition("b", GPU, 10)],
            {},
            "GPU-0: partition b shares the device without memory_mb, so that it might take the memory of "
            "the others; expected memory_mb",
        ),
        (
            [MigPartition("a", MIG, "2g.20gb"), MpsPartition("b", MIG, 50)],
            {},
            "MIG-0: 150 % are requested (100 % for a, 50 % for b), 100 % are free",
        ),
        (
            [CpuPartition("c", (0,), hard_memory_mb=700), CpuPartition("d", (1,), hard_memory_mb=400)],
            {HOST: FreeCapacity(100, 1024)},
            "host: 1100 MiB of memory are requested by hard_memory_mb (700 MiB for c, 400 MiB for d), "
            "1024 MiB are free",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    partitions: list[Partition], free: dict[str, FreeCapacity], reason: str
) -> None:
    with pytest.raises(InfeasibleLayout) as refused:
        check_capacity(partitions, free)
    assert str(refused.value) == reason
