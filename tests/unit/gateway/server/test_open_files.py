"""Connections fit into the limit of open files."""

import resource

import pytest

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.server.open_files import open_files, raise_open_files
from sluice.mps.partitions.partition import CpuPartition, MpsPartition


@pytest.mark.parametrize(
    ("limits", "raised", "allowed"),
    [
        ((1024, resource.RLIM_INFINITY), 5376, (4096, 1024)),
        ((1024, 100_000), 5376, (4096, 1024)),
        ((20_000, 20_000), 20_000, (4096, 1024)),
        ((1024, 4000), 4000, (2808, 936)),
        ((1024, 1024), 1024, (576, 192)),
        ((64, 64), 64, (16, 16)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY, (4096, 1024)),
    ],
)
def test_the_soft_limit_is_raised_and_connections_share_the_rest(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: int, allowed: tuple[int, int]
) -> None:
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda which: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: now.__setitem__(0, given))
    files = raise_open_files(FrontDoorSettings(), ())
    assert (files.http, files.grpc) == allowed
    assert now[0] == (raised, limits[1])


def test_each_partition_needs_some_and_mps_needs_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 5400))
    few, many = ([CpuPartition(f"cpu{index}", (index,)) for index in range(count)] for count in (3, 64))
    assert open_files(FrontDoorSettings(), few).http == 4096
    assert open_files(FrontDoorSettings(), many)[2:] == (5888, 5400, 3474, 1024)
    assert open_files(FrontDoorSettings(), [MpsPartition("mps0", "GPU-1", 50)]).needed == 16_384
