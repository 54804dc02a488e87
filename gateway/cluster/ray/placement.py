"""Room for workers in a Ray cluster, and where they may be placed; without Ray, by what it says of its nodes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sluice.gateway.config.ray_settings import MAX_SLOTS, RaySettings
from sluice.models.errors import ConfigError

HEAD = "node:__internal_head__"
"""The resource by which Ray marks the node of its head."""


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster that is alive; `resources` are all that it has, used or not."""

    id: str
    name: str
    address: str
    hostname: str
    resources: dict[str, float]

    @property
    def is_head(self) -> bool:
        """True if Ray's head runs there."""
        return HEAD in self.resources


def alive_nodes(listed: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The nodes of `ray.nodes()` that are alive. Of nodes with the same name each gets a part of its id as well."""
    alive = [each for each in listed if each["Alive"]]
    names = Counter(each.get("NodeName") or each["NodeManagerAddress"] for each in alive)
    nodes = []
    for each in alive:
        name = each.get("NodeName") or each["NodeManagerAddress"]
        unique = name if names[name] == 1 else f"{name}-{each['NodeID'][:6]}"
        nodes.append(
            Node(
                each["NodeID"], unique, each["NodeManagerAddress"], each["NodeManagerHostname"], dict(each["Resources"])
            )
        )
    return tuple(sorted(nodes, key=lambda node: (node.name, node.id)))


def allowed_nodes(nodes: Sequence[Node], names: Sequence[str]) -> tuple[Node, ...]:
    """The nodes with one of the names, addresses or ids; all of them if no names are given."""
    if not names:
        return tuple(nodes)
    wanted = set(names)
    return tuple(node for node in nodes if wanted & {node.id, node.name, node.address, node.hostname})


def room(nodes: Sequence[Node], resources: Mapping[str, float]) -> int:
    """The number of workers with these resources that all the nodes hold together, when nothing else is there."""
    return sum(
        min((math.floor(node.resources.get(name, 0) / amount + 1e-9) for name, amount in resources.items()), default=0)
        for node in nodes
    )


def packed_node(nodes: Sequence[Node], resources: Mapping[str, float], on_nodes: Mapping[str, int]) -> Node | None:
    """The node for one more worker, so that few nodes have workers; None if all are full.

    `on_nodes` are the workers of the class by the ids of nodes.
    """
    left = [node for node in nodes if on_nodes.get(node.id, 0) < room([node], resources)]
    return max(left, key=lambda node: on_nodes.get(node.id, 0), default=None)


def found(name: str, settings: RaySettings, nodes: Sequence[Node]) -> RaySettings:
    """The settings of a class with what they leave to the cluster: resources, and the number of workers.

    Raises ConfigError if the cluster has no room for a worker, or no such node.
    """
    allowed = allowed_nodes(nodes, settings.nodes)
    if not allowed:
        listed = ", ".join(node.name for node in nodes)
        raise ConfigError(
            f"partitions: {name}: ray: nodes: expected nodes of the cluster, which are {listed or 'none'}, "
            f"got {', '.join(settings.nodes)}"
        )
    resources = settings.resources or ({"GPU": 1.0} if room(allowed, {"GPU": 1.0}) else {"CPU": 1.0})
    if settings.most is not None:
        return msgspec.structs.replace(settings, resources=resources)
    count = min(room(allowed, resources), MAX_SLOTS)
    if not count:
        raise ConfigError(
            f"partitions: {name}: ray: no node of the cluster has {amounts(resources)}; "
            f"{'; '.join(f'{node.name}: {amounts(_shown(node.resources))}' for node in allowed[:8])}"
        )
    return msgspec.structs.replace(settings, resources=resources, count=count)


def no_room(resources: Mapping[str, float], nodes: Sequence[Node], free: Mapping[str, float]) -> str:
    """A sentence on why Ray has not placed a worker yet."""
    if not nodes:
        return "no node that may be used is in the Ray cluster"
    if not room(nodes, resources):
        return f"no node of the Ray cluster has {amounts(resources)}"
    return f"Ray waits for a node with {amounts(resources)} free; {amounts(_shown(free)) or 'nothing'} is free in all"


def amounts(resources: Mapping[str, float]) -> str:
    """Resources for a sentence, for example `CPU 2, mig-2g.20gb 1`."""
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()))


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    """Those that people name: Ray adds some of its own."""
    hidden = ("node:", "memory", "object_store_memory", "accelerator_type:")
    return {
        name: amount
        for name, amount in resources.items()
        if not name.startswith(hidden) and "_group_" not in name  # what placement groups have taken
    }
