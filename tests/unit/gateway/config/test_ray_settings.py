import re
from typing import Any

import msgspec
import pytest

from sluice.gateway.config.ray_settings import RaySettings, worker_kind


@pytest.mark.parametrize(
    ("resources", "kind"),
    [
        ({"CPU": 1}, "cpu1"),
        ({"CPU": 4, "disk": 1}, "cpu4"),
        ({"GPU": 0.25}, "mps-25"),
        ({"GPU": 1, "CPU": 2}, "mps-100"),
        ({"mig-2g.20gb": 1}, "mig-2g.20gb"),
        ({"mig-1g.10gb+me": 1, "CPU": 1}, "mig-1g.10gb+me"),
    ],
)
def test_the_kind_follows_from_the_resources(resources: dict[str, float], kind: str) -> None:
    assert worker_kind(resources) == kind


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({"CPU": 0.5}, "CPU: expected whole cores, which no other worker uses, got 0.5"),
        ({"GPU": 2}, "GPU: expected a part from 0.01 to 1 of one GPU"),
        ({"GPU": 0}, "GPU: expected a finite amount above 0, got 0"),
        ({"GPU": 1, "mig-2g.20gb": 1}, "expected one device for a worker, got GPU, mig-2g.20gb"),
        ({"mig-2g.20gb": 2}, "mig-2g.20gb: expected 1, as a worker has one instance, got 2"),
        ({"disk": 1}, "expected CPU, GPU or a MIG instance such as mig-2g.20gb, got only disk"),
    ],
)
def test_resources_that_no_kind_has_are_refused(resources: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        worker_kind(resources)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"address": "somewhere"}, "address: expected auto, or a host and port such as 10.0.0.1:6379, got 'somewhere'"),
        ({"count": 2, "max": 3}, "count: expected either count, or min and max"),
        ({"min": 1}, "min: expected max as well"),
        ({"min": 4, "max": 3}, "min: expected 0 to max, which is 3, got 4"),
        ({"count": 0}, "count: expected 1 to 1024, got 0"),
        ({"nodes": ["a", "a"]}, "nodes: expected names of nodes, each once"),
        ({"near": "a b"}, "near: expected letters, digits"),
        ({"resources": {"CPU": 0.5}}, "CPU: expected whole cores"),
        ({"cache_mb": 0}, "cache_mb: expected at least 1, got 0"),
        ({"keep_s": -1}, "keep_s: expected a finite time of at least 0, got -1"),
        ({"strategy": "both"}, "Invalid enum value 'both'"),
        ({"nods": []}, "unknown field `nods`"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape(problem)):
        msgspec.convert(settings, RaySettings)


def test_the_number_of_slots_is_the_count_or_the_maximum() -> None:
    assert RaySettings(count=3).most == 3
    assert RaySettings(min=0, max=5).most == 5
    assert RaySettings().most is None
