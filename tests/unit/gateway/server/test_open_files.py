"""Connections fit into the limit of open files."""

import resource

import pytest

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.server.open_files import allowed_connections


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
    assert allowed_connections(FrontDoorSettings()) == allowed
    assert now[0] == (raised, limits[1])
