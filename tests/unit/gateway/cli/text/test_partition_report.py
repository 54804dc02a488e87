from sluice.gateway.cli.text.partition_report import partition_lines
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, ShareMode


def test_partitions_of_all_kinds_are_reported() -> None:
    partitions = (
        CpuPartition("cores", (0, 1)),
        CpuPartition("walled", (2,), memory_mb=200, hard_memory_mb=300),
        MigPartition("slice", "MIG-0", "2g.20gb", memory_mb=18_000),
        MpsPartition("share", "GPU-0", 40, 9000, ShareMode.ELASTIC),
        MpsPartition("part", "MIG-0", 40, 9000, profile="3g.40gb"),
    )
    assert partition_lines(partitions) == [
        "cores: cores 0, 1",
        "walled: core 2, 200 MiB for models, 300 MiB at most",
        "slice: 2g.20gb MIG-0, 18000 MiB for models",
        "share: 40 % (elastic) of GPU-0, 9000 MiB at most",
        "part: 40 % (hard) of 3g.40gb MIG-0, 9000 MiB at most",
    ]
