"""The actor of a namespace that keeps the leases of gateways, and has Ray place and end workers by them."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from sluice.gateway.cluster.ray.guardian import END_TIMEOUT_S
from sluice.gateway.cluster.ray.placement import Node, alive_nodes, allowed_nodes, no_room, packed_node
from sluice.gateway.cluster.ray.registry import ClassSpec, Registry, Renewal, WorkerInfo
from sluice.gateway.cluster.ray.worker_actor import KEEPER, PartitionActor
from sluice.gateway.config.ray_settings import RaySettings, Strategy

SILENT_S = 15.0
"""A worker that was not heard of for this time may have ended for good, so its actor is asked for again."""
ROUND_S = 0.5
SLOW_S = 5.0
"""The time that Ray has to place a worker before the reason is looked for."""
ASK_TIMEOUT_S, MOST_ASKED = 0.2, 5
"""The time for an actor that was not heard of to answer, and how many are asked in a round."""
_EXIT_MARGIN_S = 10.0


class KeeperActor:
    """Keeps the leases of a namespace, and has Ray place and end workers by them. It may be restarted at any time."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        # Above what a keeper before this one has given out, on whichever node.
        self._registry = Registry(int(time.time() * 1000))
        self._lock = threading.Lock()
        self._actors: dict[tuple[str, int], _Placed] = {}
        self._ending: dict[tuple[str, int], _Placed] = {}
        self._requested = 0
        self._asked = 0
        self._unused_since_s = time.monotonic()
        threading.Thread(target=self._run, name="keeper", daemon=True).start()

    def open_class(self, name: str, spec: ClassSpec) -> str:
        """See `Registry.open_class`."""
        with self._lock:
            return self._registry.open_class(name, spec, time.monotonic())

    def renew(self, gateway: str, asked: Mapping[str, tuple[int, dict[int, int]]]) -> dict[str, Renewal | None]:
        """Renew a gateway's leases: of each class the number that it wants, and what it holds."""
        with self._lock:
            now_s = time.monotonic()
            return {name: self._registry.renew(gateway, name, *each, now_s) for name, each in asked.items()}

    def leave(self, gateway: str) -> None:
        """See `Registry.leave`."""
        with self._lock:
            self._registry.leave(gateway, time.monotonic())

    def new_number(self) -> int:
        """See `Registry.new_number`."""
        with self._lock:
            return self._registry.new_number()

    def report(self, name: str, slot: int, info: WorkerInfo) -> bool:
        """See `Registry.report`."""
        with self._lock:
            return self._registry.report(name, slot, info._replace(heard_s=time.monotonic()))

    def document(self) -> dict[str, Any]:
        """See `Registry.document`."""
        with self._lock:
            return self._registry.document()

    def end_unused(self) -> None:
        """Have the workers of classes end that no gateway uses, without waiting for one that may come."""
        with self._lock:
            self._registry.end_unused(time.monotonic())

    def workers(self) -> int:
        """The number of workers that are there."""
        return len(self._actors) + len(self._ending)

    def _run(self) -> None:
        while True:
            try:
                self._round()
            except (ray.exceptions.RayError, ValueError, RuntimeError, OSError) as error:
                print(f"workers cannot be placed now: {error}", file=sys.stderr, flush=True)
            time.sleep(ROUND_S)

    def _round(self) -> None:
        """Place the workers of slots that gateways have, and end those that none has had for a while."""
        now_s = time.monotonic()
        with self._lock:
            specs = {name: self._registry.spec(name) for name in self._registry.names}
            leased = {name: [*self._registry.leased(name)] for name in specs}
            unused = {name: self._registry.unused(name, now_s) for name in specs}
            workers = {name: dict(self._registry.workers(name)) for name in specs}
            wanted = {name: self._registry.wanted(name, now_s) for name in specs}
            is_idle = not self._registry.gateways() and not self._actors and not any(workers.values())
        self._asked = 0
        nodes = alive_nodes(ray.nodes())
        for name, spec in specs.items():
            allowed = allowed_nodes(nodes, spec.settings.nodes)
            for slot in leased[name]:
                if (name, slot) in self._ending:
                    continue
                try:
                    self._place(name, slot, spec, workers[name], allowed, now_s)
                except (ray.exceptions.RayError, ValueError, TypeError, RuntimeError, OSError) as error:
                    self._wait(name, slot, f"Ray cannot place it: {_first_line(error)}")
            for slot in unused[name]:
                if slot in workers[name] or (name, slot) in self._actors:
                    self._end(name, slot, now_s)
        self._finish_ends(specs, now_s)
        self._request(specs, wanted)
        if not is_idle:
            self._unused_since_s = now_s
        elif now_s - self._unused_since_s > max([_EXIT_MARGIN_S, *(each.settings.keep_s for each in specs.values())]):
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _place(
        self,
        name: str,
        slot: int,
        spec: ClassSpec,
        workers: Mapping[int, WorkerInfo],
        nodes: tuple[Node, ...],
        now_s: float,
    ) -> None:
        info, placed = workers.get(slot), self._actors.get((name, slot))
        heard_s = max(info.heard_s if info is not None else 0.0, placed.asked_s if placed is not None else 0.0)
        if placed is not None and info is not None and now_s - heard_s < SILENT_S:
            return
        if placed is not None and info is None:
            if now_s - placed.asked_s < SLOW_S:
                return
            self._wait(name, slot, self._why_waiting(placed, spec, nodes))
            if placed.nodes != {node.id for node in nodes} and spec.settings.nodes:
                ray.kill(placed.handle, no_restart=True)  # it may wait for a node that has gone for good
        if not nodes:
            return
        strategy = self._strategy(name, spec.settings, slot, nodes, workers)
        target = strategy.node_id if isinstance(strategy, NodeAffinitySchedulingStrategy) else ""
        handle = self._create(name, slot, spec, nodes, strategy)
        self._actors[name, slot] = _Placed(handle, {node.id for node in nodes}, now_s, target)

    def _wait(self, name: str, slot: int, reason: str) -> None:
        with self._lock:
            self._registry.wait(name, slot, reason)

    def _why_waiting(self, placed: "_Placed", spec: ClassSpec, nodes: tuple[Node, ...]) -> str:
        """Why a worker was not heard of, in a sentence; a few actors are asked, since some do not answer."""
        if self._asked < MOST_ASKED:
            self._asked += 1
            try:
                ray.get(placed.handle.ping.remote(), timeout=ASK_TIMEOUT_S)
            except ray.exceptions.GetTimeoutError:
                pass
            except ray.exceptions.RayError as error:
                return f"its actor has ended: {_first_line(error)}"
            else:
                return "its worker starts"
        return no_room(spec.settings.resources, nodes, ray.available_resources())

    def _create(self, name: str, slot: int, spec: ClassSpec, nodes: tuple[Node, ...], strategy: Any) -> Any:
        """The actor of a slot, which may be there already."""
        settings = spec.settings
        custom = {key: amount for key, amount in settings.resources.items() if key not in ("CPU", "GPU")}
        options: dict[str, Any] = {
            "name": f"{name}-{slot}",
            "namespace": self._namespace,
            "lifetime": "detached",
            "get_if_exists": True,
            "num_cpus": settings.resources.get("CPU", 0),
            "num_gpus": settings.resources.get("GPU", 0),
            "resources": custom,
            "max_restarts": -1,
            "max_concurrency": 4,
            "scheduling_strategy": strategy,
        }
        if settings.runtime_env:
            options["runtime_env"] = settings.runtime_env
        if settings.nodes and settings.near is None:
            options["label_selector"] = _selector(nodes)
        actor = ray.remote(PartitionActor).options(**options)
        return actor.remote(self._namespace, name, slot, spec)

    def _strategy(
        self, name: str, settings: RaySettings, slot: int, nodes: tuple[Node, ...], workers: Mapping[int, WorkerInfo]
    ) -> Any:
        if settings.near is not None:
            group, bundle = self._group(name, settings, slot, nodes)
            return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        if settings.strategy is Strategy.SPREAD:
            return "SPREAD"
        on_nodes = Counter(info.node_id for info in workers.values())
        on_nodes.update(
            placed.target
            for (each, number), placed in self._actors.items()
            if each == name and number not in workers and number != slot
        )
        target = packed_node(nodes, settings.resources, on_nodes)
        return "DEFAULT" if target is None else NodeAffinitySchedulingStrategy(target.id, soft=True)

    def _group(
        self, class_name: str, settings: RaySettings, slot: int, nodes: tuple[Node, ...]
    ) -> tuple[PlacementGroup, int]:
        """The placement group of a slot of all classes that are near each other, and the place of this class in it."""
        with self._lock:
            specs = {name: self._registry.spec(name) for name in self._registry.names}
        near = {name: spec for name, spec in specs.items() if spec.settings.near == settings.near}
        names = sorted(name for name, spec in near.items() if slot < spec.slots)
        index = names.index(class_name)
        title = f"{settings.near}-{slot}"
        try:
            return get_placement_group(title), index
        except ValueError:
            bundles = [dict(specs[name].settings.resources) for name in names]
            selectors = [_selector(nodes) for _ in bundles] if settings.nodes else None
            group = placement_group(
                bundles, "STRICT_PACK", name=title, lifetime="detached", bundle_label_selector=selectors
            )
            return group, index

    def _end(self, name: str, slot: int, now_s: float) -> None:
        """Have a worker finish and end."""
        if (name, slot) in self._ending:
            return
        try:
            handle = ray.get_actor(f"{name}-{slot}", namespace=self._namespace)
        except ValueError:
            self._actors.pop((name, slot), None)
            with self._lock:
                self._registry.forget(name, slot)
            return
        handle.stop.remote()
        self._actors.pop((name, slot), None)
        self._ending[name, slot] = _Placed(handle, set(), now_s)

    def _finish_ends(self, specs: Mapping[str, ClassSpec], now_s: float) -> None:
        """Forget workers that have ended, and kill those that do not end."""
        for (name, slot), ending in list(self._ending.items()):
            try:
                ray.get_actor(f"{name}-{slot}", namespace=self._namespace)
            except ValueError:
                del self._ending[name, slot]
                with self._lock:
                    if name in self._registry.names:
                        self._registry.forget(name, slot)
                if name in specs and (near := specs[name].settings.near) is not None:
                    self._remove_group(near, slot, specs)
                continue
            if now_s - ending.asked_s > END_TIMEOUT_S + _EXIT_MARGIN_S:
                ray.kill(ending.handle, no_restart=True)

    def _remove_group(self, near: str, slot: int, specs: Mapping[str, ClassSpec]) -> None:
        names = [name for name, spec in specs.items() if spec.settings.near == near]
        if any((name, slot) in self._actors or (name, slot) in self._ending for name in names):
            return
        try:
            remove_placement_group(get_placement_group(f"{near}-{slot}"))
        except ValueError:
            return

    def _request(self, specs: Mapping[str, ClassSpec], wanted: Mapping[str, int]) -> None:
        """Have Ray's autoscaler, if there is one, keep nodes for all workers that are wanted."""
        bundles = [
            dict(spec.settings.resources)
            for name, spec in specs.items()
            if spec.settings.max is not None
            for _ in range(wanted[name])
        ]
        if len(bundles) == self._requested:
            return
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=bundles)
        self._requested = len(bundles)


class _Placed:
    """An actor that Ray was asked for, the nodes that it may be on, when, and the node that it should be on."""

    def __init__(self, handle: Any, nodes: set[str], asked_s: float, target: str = "") -> None:
        self.target = target
        self.handle = handle
        self.nodes = nodes
        self.asked_s = asked_s


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0]:.300}" if lines else type(error).__name__


def _selector(nodes: tuple[Node, ...]) -> dict[str, str]:
    return {"ray.io/node-id": f"in({','.join(node.id for node in nodes)})"}


def keeper(namespace: str) -> Any:
    """The keeper of a namespace, which is made if there is none; on the head's node if that has room."""
    head = next((node for node in alive_nodes(ray.nodes()) if node.is_head), None)
    strategy = "DEFAULT" if head is None else NodeAffinitySchedulingStrategy(head.id, soft=True)
    actor = ray.remote(KeeperActor).options(
        name=KEEPER,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        scheduling_strategy=strategy,
    )
    return actor.remote(namespace)
