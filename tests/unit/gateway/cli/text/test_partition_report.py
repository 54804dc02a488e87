from sluice.gateway.cli.text.partition_report import partition_lines, remote_lines
from sluice.gateway.config.ray_settings import RaySettings
from sluice.gateway.config.remote_settings import DnsSettings, RemoteClass
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


def test_remote_partitions_are_reported_with_the_places_of_their_workers() -> None:
    classes = [
        RemoteClass("edge", "cpu2", urls=("10.0.0.5:9001", "10.0.0.6:9001"), memory_mb=500),
        RemoteClass("pods", "mps-25", dns=DnsSettings("workers.ns.svc", 9001, 4)),
        RemoteClass("alone", "cpu1", dns=DnsSettings("worker.ns.svc", 9001, 1)),
        RemoteClass("ray", ray=RaySettings(count=2, resources={"CPU": 1})),
        RemoteClass("any", ray=RaySettings("10.0.0.1:6379")),
    ]
    assert remote_lines(classes) == [
        "edge-0: cpu2 at 10.0.0.5:9001, 500 MiB for models",
        "edge-1: cpu2 at 10.0.0.6:9001, 500 MiB for models",
        "pods-0 to pods-3: mps-25, found in DNS as workers.ns.svc, port 9001",
        "alone-0: cpu1, found in DNS as worker.ns.svc, port 9001",
        "ray-0 to ray-1: cpu1, placed by Ray, cluster auto",
        "any-0 and on: of the kind that the cluster has, placed by Ray, cluster 10.0.0.1:6379",
    ]
