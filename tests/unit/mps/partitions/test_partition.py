"""Kinds of partitions, which latencies are known by, and what they are of a whole GPU."""

import pytest

from sluice.mps.partitions.partition import GpuPartition, MigPartition, MpsPartition, ShareMode

GPU, MIG = "GPU-0", "MIG-0"


@pytest.mark.parametrize(
    ("partition", "kind", "share"),
    [
        (MigPartition("a", MIG, "3g.40gb"), "mig-3g.40gb", 3 / 7),
        (MigPartition("a", MIG, "2g.12gb"), "mig-2g.12gb", 0.5),  # of an A30
        (MpsPartition("a", GPU, 50), "mps-50", 0.5),
        (MpsPartition("a", GPU, 50, mode=ShareMode.UNCAPPED), "mps-100", 0.5),
        (MpsPartition("a", MIG, 50, profile="3g.40gb"), "mps-50/3g.40gb", 3 / 14),
        (MpsPartition("a", MIG, 50, mode=ShareMode.UNCAPPED, profile="4g.24gb"), "mps-100/4g.24gb", 0.5),
    ],
)
def test_a_share_of_an_instance_is_another_kind_than_one_of_a_gpu(
    partition: GpuPartition, kind: str, share: float
) -> None:
    assert partition.gpu_share == pytest.approx(share)
    assert partition.profile_kind == kind


@pytest.mark.parametrize("profile", ["3", "8g.80gb", "half"])
def test_a_share_of_what_is_no_instance_is_refused(profile: str) -> None:
    with pytest.raises(ValueError, match=f"partition a: expected a profile such as 2g or 2g.20gb, got '{profile}'"):
        MpsPartition("a", MIG, 50, profile=profile)
