from collections import Counter
from typing import Any

import pytest

from sluice.gateway.cluster.ray.placement import Node, alive_nodes, allowed_nodes, found, no_room, packed_node, room
from sluice.gateway.config.ray_settings import RaySettings
from sluice.models.errors import ConfigError


def listed(name: str, number: int, alive: bool = True, **resources: float) -> dict[str, Any]:
    """A node as Ray lists it."""
    return {
        "NodeID": f"{number:06x}0000",
        "Alive": alive,
        "NodeName": name,
        "NodeManagerAddress": f"10.0.0.{number}",
        "NodeManagerHostname": f"host{number}",
        "Resources": {"memory": 1e9, f"node:10.0.0.{number}": 1.0, **resources},
    }


NODES = alive_nodes([listed("a", 1, CPU=4), listed("b", 2, CPU=2, GPU=1), listed("c", 3, False, CPU=64)])


def test_dead_nodes_are_left_out_and_equal_names_get_a_part_of_the_id() -> None:
    assert [node.name for node in NODES] == ["a", "b"]
    twins = alive_nodes([listed("10.0.0.9", 1), listed("10.0.0.9", 2)])
    assert [node.name for node in twins] == ["10.0.0.9-000001", "10.0.0.9-000002"]


@pytest.mark.parametrize("name", ["b", "10.0.0.2", "host2", "0000020000"])
def test_a_node_is_named_in_any_of_four_ways(name: str) -> None:
    assert [node.name for node in allowed_nodes(NODES, [name])] == ["b"]


def test_room_is_what_whole_workers_fit_on_each_node() -> None:
    assert room(NODES, {"CPU": 1}) == 6
    assert room(NODES, {"CPU": 3}) == 1
    assert room(NODES, {"GPU": 0.25}) == 4
    assert room(NODES, {"GPU": 0.25, "CPU": 1}) == 2
    assert room(NODES, {"mig-2g.20gb": 1}) == 0


def test_without_settings_a_cluster_with_gpus_gives_a_worker_to_each() -> None:
    settled = found("edge", RaySettings(), NODES)
    assert (settled.count, settled.resources) == (1, {"GPU": 1.0})


def test_without_settings_a_cluster_without_gpus_gives_a_worker_to_each_core() -> None:
    settled = found("edge", RaySettings(nodes=("a",)), NODES)
    assert (settled.count, settled.resources) == (4, {"CPU": 1.0})


def test_a_number_of_workers_stays() -> None:
    assert found("edge", RaySettings(count=9, resources={"CPU": 2}), NODES).count == 9
    settled = found("edge", RaySettings(min=1, max=3), NODES)
    assert (settled.count, settled.min, settled.max) == (None, 1, 3)


def test_a_cluster_without_room_is_refused_with_what_it_has() -> None:
    with pytest.raises(ConfigError, match=r"no node of the cluster has mig-1g\.10gb 1; a: CPU 4; b: CPU 2, GPU 1"):
        found("edge", RaySettings(resources={"mig-1g.10gb": 1}), NODES)


def test_unknown_nodes_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="expected nodes of the cluster, which are a, b, got z"):
        found("edge", RaySettings(nodes=("z",)), NODES)


def test_workers_are_packed_on_one_node_after_the_other() -> None:
    placed: list[str] = []
    for _ in range(6):
        node = packed_node(NODES, {"CPU": 1}, Counter(placed))
        assert node is not None
        placed.append(node.id)
    assert placed == [NODES[0].id] * 4 + [NODES[1].id] * 2
    assert packed_node(NODES, {"CPU": 1}, Counter(placed)) is None


def test_a_worker_that_waits_has_a_reason() -> None:
    assert no_room({"CPU": 8}, NODES, {}) == "no node of the Ray cluster has CPU 8"
    assert no_room({"CPU": 1}, (), {}) == "no node that may be used is in the Ray cluster"
    free = {"CPU": 1.0, "CPU_group_0_ab": 1.0, "memory": 5.0, "node:10.0.0.1": 1.0}
    waits = "Ray waits for a node with CPU 2 free; CPU 1 is free in all"
    assert no_room({"CPU": 2}, NODES, free) == waits


def test_the_head_is_known_by_its_resource() -> None:
    assert Node("1", "a", "", "", {"node:__internal_head__": 1.0}).is_head
    assert not NODES[0].is_head
