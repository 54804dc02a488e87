"""Schedulers of DAGs that a thesis compares: first come, first served, whole DAGs on one node, and sampled placements.

A. Ramkumar, Making the Most of Serverless Accelerators (EECS-2022-88, chapter 4), describes them in words; its
simulator is not public. A node runs one batch at a time. All times are in milliseconds, and as exact as the tables.
"""

import itertools
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS


class DagFunction(msgspec.Struct, frozen=True):
    """A function of a DAG: its model, and the functions (by index) whose outputs it takes."""

    model: str
    sources: tuple[int, ...] = ()


Dag = tuple[DagFunction, ...]
"""Functions in topological order."""


class NodeKind:
    """Equal nodes: the price of a millisecond of one, and the times of the models there."""

    def __init__(self, count: int, price: float, tables: Mapping[str, LatencyTable]) -> None:
        self.count = count
        self.price = price
        self.tables = tables
        self.times_ms = {
            model: [table.latency_ns(rows) / NS_PER_MS for rows in range(table.cells[-1][0] + 1)]
            for model, table in tables.items()
        }

    def batch_ms(self, model: str, rows: int) -> float:
        """The time of a batch, of one of `most_rows` at most."""
        return self.times_ms[model][rows]

    def most_rows(self, model: str) -> int:
        """The largest batch."""
        return len(self.times_ms[model]) - 1


class DagRequest(msgspec.Struct, frozen=True):
    """A request to a DAG."""

    dag: int
    came_ms: float
    deadline_ms: float


class DagAnswer(msgspec.Struct, frozen=True):
    """A request that was answered: when, and the price of its part of the batches that it ran in."""

    asked: DagRequest
    ended_ms: float
    cost: float

    @property
    def is_in_time(self) -> bool:
        """True if it was answered by its deadline; a nanosecond later is a rounding error."""
        return self.ended_ms <= self.asked.deadline_ms + 1 / NS_PER_MS


class Cluster(NamedTuple):
    """Nodes of some kinds, and the DAGs that they serve."""

    kinds: tuple[NodeKind, ...]
    dags: tuple[Dag, ...]

    @property
    def nodes(self) -> list[NodeKind]:
        """The kind of each node."""
        return [kind for kind in self.kinds for _ in range(kind.count)]


Offers = Callable[[DagRequest, list[float]], Iterator[tuple[int, ...]]]
"""The nodes that a request may get for its functions, the best first, by when each node is free."""


def first_come(cluster: Cluster, requests: Sequence[DagRequest]) -> list[DagAnswer]:
    """First come, first served, without batches and refusals: a function that is ready takes the quickest idle node."""
    nodes = cluster.nodes
    idle = set(range(len(nodes)))
    missing = [[len(function.sources) for function in cluster.dags[each.dag]] for each in requests]
    left = [len(each) for each in missing]
    costs = [0.0] * len(requests)
    ready: list[tuple[int, int]] = []
    events: list[tuple[float, int, int, int]] = [(each.came_ms, number, -1, -1) for number, each in enumerate(requests)]
    done = []
    while events:
        now_ms, number, index, node = heappop(events)
        functions = cluster.dags[requests[number].dag]
        if index >= 0:
            idle.add(node)
            left[number] -= 1
            if not left[number]:
                done.append(DagAnswer(requests[number], now_ms, costs[number]))
        for later, function in enumerate(functions):
            missing[number][later] -= index in function.sources
            if missing[number][later] == 0 and (index in function.sources or (index < 0 and not function.sources)):
                heappush(ready, (number, later))
        while ready and idle:
            first, later = heappop(ready)
            model = cluster.dags[requests[first].dag][later].model
            node = min(idle, key=lambda each: (nodes[each].batch_ms(model, 1), each))
            idle.remove(node)
            took_ms = nodes[node].batch_ms(model, 1)
            costs[first] += took_ms * nodes[node].price
            heappush(events, (now_ms + took_ms, first, later, node))
    return done


class _Instance:
    """A batch of requests to one DAG, and the node of each function."""

    __slots__ = ("deadline_ms", "members", "nodes")

    def __init__(self, nodes: tuple[int, ...], first: DagRequest) -> None:
        self.nodes = nodes
        self.members = [first]
        self.deadline_ms = first.deadline_ms  # of later members it is later

    @property
    def dag(self) -> int:
        return self.members[0].dag


class ReservedDags:
    """Reserves the time of nodes for whole DAGs: each node runs its functions in the order of their reservations.

    A request joins a batch of its DAG that has not begun, or gets nodes from `offers`, if nobody is late then. Else it
    is refused.
    """

    def __init__(
        self, cluster: Cluster, offers: Callable[[DagRequest, list[float]], Iterator[tuple[int, ...]]]
    ) -> None:
        self._cluster = cluster
        self._nodes = cluster.nodes
        self._offers = offers
        self._planned: list[_Instance] = []
        self._free_ms = [0.0] * len(self._nodes)
        self._done: list[DagAnswer] = []

    def admit(self, request: DagRequest) -> bool:
        """Reserve nodes for a request, which comes after those before; False if it is refused."""
        self._retire(request.came_ms)
        times, free_ms = self._timeline()
        for instance, (begin_ms, _, _) in zip(reversed(self._planned), reversed(times), strict=True):
            if instance.dag == request.dag and begin_ms > request.came_ms and self._has_room(instance):
                instance.members.append(request)
                if self._is_in_time():
                    return True
                instance.members.pop()
        for nodes in self._offers(request, free_ms):
            self._planned.append(_Instance(nodes, request))
            if self._is_in_time():
                return True
            self._planned.pop()
        return False

    def finish(self) -> list[DagAnswer]:
        """Run all that is reserved."""
        self._retire(float("inf"))
        return self._done

    def _retire(self, now_ms: float) -> None:
        """Take the first instances that have begun as they are."""
        while self._planned:
            instance, free_ms = self._planned[0], list(self._free_ms)
            begin_ms, end_ms, cost = self._run(instance, free_ms)
            if begin_ms > now_ms:
                return
            del self._planned[0]
            self._free_ms = free_ms
            self._done += [DagAnswer(each, end_ms, cost / len(instance.members)) for each in instance.members]

    def _run(self, instance: _Instance, free_ms: list[float]) -> tuple[float, float, float]:
        """The begin, the end and the price of an instance, behind which its nodes are free."""
        opened_ms, rows = instance.members[-1].came_ms, len(instance.members)
        begin_ms, cost = float("inf"), 0.0
        ends_ms: list[float] = []
        for function, node in zip(self._cluster.dags[instance.dag], instance.nodes, strict=True):
            took_ms = self._nodes[node].batch_ms(function.model, rows)
            start_ms = max(opened_ms, free_ms[node])
            for source in function.sources:
                start_ms = max(start_ms, ends_ms[source])
            free_ms[node] = start_ms + took_ms
            ends_ms.append(start_ms + took_ms)
            begin_ms = min(begin_ms, start_ms)
            cost += took_ms * self._nodes[node].price
        return begin_ms, max(ends_ms), cost

    def _timeline(self) -> tuple[list[tuple[float, float, float]], list[float]]:
        """The times of all planned instances, and when each node is free behind them."""
        free_ms = list(self._free_ms)
        return [self._run(instance, free_ms) for instance in self._planned], free_ms

    def _is_in_time(self) -> bool:
        free_ms = list(self._free_ms)
        return all(self._run(instance, free_ms)[1] <= instance.deadline_ms for instance in self._planned)

    def _has_room(self, instance: _Instance) -> bool:
        functions = self._cluster.dags[instance.dag]
        rows = len(instance.members)
        return all(
            rows < self._nodes[node].most_rows(each.model) for each, node in zip(functions, instance.nodes, strict=True)
        )


def whole_dags(cluster: Cluster) -> ReservedDags:
    """A naive Clockwork: a DAG is on one node, that where it ends first; what would be late is refused."""
    nodes = cluster.nodes

    def offers(request: DagRequest, free_ms: list[float]) -> Iterator[tuple[int, ...]]:
        functions = cluster.dags[request.dag]

        def ends_ms(node: int) -> float:
            took_ms = sum(nodes[node].batch_ms(function.model, 1) for function in functions)
            return max(free_ms[node], request.came_ms) + took_ms

        yield (min(range(len(nodes)), key=ends_ms),) * len(functions)

    return ReservedDags(cluster, offers)


def sampled_placements(cluster: Cluster, max_cost: float, sample: int, seed: int) -> ReservedDags:
    """The thesis' scheduler: of the Pareto-optimal placements within both objectives, a random one that fits now.

    At most `sample` of them are tried. A function gets the node of its kind that is free first.
    """
    chance = random.Random(seed)
    by_dag = [_placements(cluster, dag) for dag in cluster.dags]
    kind_nodes, first = [], 0
    for kind in cluster.kinds:
        kind_nodes.append(range(first, first + kind.count))
        first += kind.count

    def offers(request: DagRequest, free_ms: list[float]) -> Iterator[tuple[int, ...]]:
        by_latency = by_dag[request.dag]
        left_ms = request.deadline_ms - request.came_ms
        in_time = by_latency[: bisect_right(by_latency, left_ms, key=lambda each: each[0])]
        fitting = [kinds for _, cost, kinds in in_time if cost <= max_cost]
        for kinds in chance.sample(fitting, min(sample, len(fitting))):
            free = list(free_ms)
            placed = []
            for kind, function in zip(kinds, cluster.dags[request.dag], strict=True):
                node = min(kind_nodes[kind], key=free.__getitem__)
                free[node] = max(free[node], request.came_ms) + cluster.kinds[kind].batch_ms(function.model, 1)
                placed.append(node)
            yield tuple(placed)

    return ReservedDags(cluster, offers)


def _placements(cluster: Cluster, dag: Dag) -> list[tuple[float, float, tuple[int, ...]]]:
    """The Pareto-optimal (latency, cost, kinds of the functions), the quickest first, without any wait."""
    found: list[tuple[float, float, tuple[int, ...]]] = []
    for kinds in itertools.product(range(len(cluster.kinds)), repeat=len(dag)):
        ends_ms: list[float] = []
        cost = 0.0
        for function, kind in zip(dag, kinds, strict=True):
            took_ms = cluster.kinds[kind].batch_ms(function.model, 1)
            ends_ms.append(max((ends_ms[source] for source in function.sources), default=0.0) + took_ms)
            cost += took_ms * cluster.kinds[kind].price
        found.append((max(ends_ms), cost, kinds))
    front: list[tuple[float, float, tuple[int, ...]]] = []
    for each in sorted(found):
        if not front or each[1] < front[-1][1]:
            front.append(each)
    return front
