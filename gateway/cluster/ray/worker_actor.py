"""The actor of one worker: it starts `sluice worker` on the node where Ray has put it."""

import os
import sys
import threading
import time

import ray

from sluice.gateway.cluster.ray.placement import alive_nodes
from sluice.gateway.cluster.ray.registry import ClassSpec, WorkerInfo
from sluice.gateway.cluster.ray.worker_child import WorkerChild, WorkerOrder
from sluice.gateway.config.ray_settings import worker_kind

KEEPER = "sluice-keeper"
"""The name of the actor that keeps the leases of a namespace."""
CALL_TIMEOUT_S = 5.0
"""The time for the answer of an actor."""
REPORT_S = 3.0
"""The time between two reports of a worker, by which a keeper that was restarted learns of it."""
FIRST_RESTART_S, LAST_RESTART_S = 0.5, 30.0
"""The first and the longest time before a worker is started again; it doubles each time."""


class PartitionActor:
    """One worker: starts `sluice worker` on the node where Ray has put this actor.

    It restarts a worker that has exited, and tells the keeper where it listens.
    """

    def __init__(self, namespace: str, name: str, slot: int, spec: ClassSpec) -> None:
        self._namespace, self._name, self._slot, self._spec = namespace, name, slot, spec
        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        nodes = {node.id: node for node in alive_nodes(ray.nodes())}
        self._node = nodes.get(self._node_id)
        self._number = 0
        self._child: WorkerChild | None = None
        self._is_ending = False
        self._is_replaced = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def ping(self) -> int:
        """The worker's number."""
        return self._number

    def replace(self) -> None:
        """Have the worker finish its batches and start a new one in its place; returns when it has ended."""
        if (child := self._child) is not None:
            self._is_replaced.set()
            child.end()

    def stop(self) -> None:
        """Have the worker finish its batches and end, and end this actor for good."""
        self._is_ending = True
        if (child := self._child) is not None:
            child.end()
        ray.actor.exit_actor()

    def _run(self) -> None:
        restart_s = FIRST_RESTART_S
        while not self._is_ending:
            self._is_replaced.clear()
            self._number = self._ask_number()
            started_s = time.monotonic()
            try:
                reason = self._run_one()
            except (OSError, ValueError, RuntimeError) as error:
                reason = f"the worker cannot be started: {error}"
            self._child = None
            self._report("", reason)
            if time.monotonic() - started_s > LAST_RESTART_S or self._is_replaced.is_set():
                restart_s = FIRST_RESTART_S
            else:
                time.sleep(restart_s)
                restart_s = min(2 * restart_s, LAST_RESTART_S)

    def _run_one(self) -> str:
        """Run a worker to its end; returns why it ended."""
        child = self._child = WorkerChild(self._order())
        url, reason = child.wait_ready()
        if not url:
            return reason
        while True:
            self._report(url, "")
            if (ended := child.ended(REPORT_S)) is not None:
                return ended

    def _order(self) -> WorkerOrder:
        settings = self._spec.settings
        kind = worker_kind(settings.resources)
        host = ray.util.get_node_ip_address()
        return WorkerOrder(
            name=f"{self._name}-{self._slot}",
            node=self._node.name if self._node is not None else host,
            host=host,
            head=ray.get_runtime_context().gcs_address,
            kind=kind,
            cores=int(settings.resources.get("CPU", 0)),
            uuid=_device(kind),
            pipes=os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""),
            key=self._spec.key,
            cache=settings.cache,
            cache_mb=settings.cache_mb,
            options=settings.worker_options,
            without_head_s=settings.without_head_s,
        )

    def _ask_number(self) -> int:
        """A number above those of all workers of this slot before; waits for the keeper for as long as it takes."""
        while True:
            try:
                keeper = ray.get_actor(KEEPER, namespace=self._namespace)
                return int(ray.get(keeper.new_number.remote(), timeout=CALL_TIMEOUT_S))
            except (ray.exceptions.RayError, ValueError) as error:  # it is moved to another node
                print(f"no answer of the keeper of leases: {error}", file=sys.stderr, flush=True)
                time.sleep(FIRST_RESTART_S)

    def _report(self, url: str, reason: str) -> None:
        info = WorkerInfo(self._number, self._node_id, self._node.name if self._node else "", url, reason, 0.0)
        try:
            keeper = ray.get_actor(KEEPER, namespace=self._namespace)
            is_newest = ray.get(keeper.report.remote(self._name, self._slot, info), timeout=CALL_TIMEOUT_S)
        except (ray.exceptions.RayError, ValueError):
            return  # it is reported again soon
        if not is_newest:
            # Ray has taken this node for lost, and has started the worker on another one.
            os._exit(1)


def _device(kind: str) -> str:
    """The UUID of the device that a worker of the kind gets on this node, "" for cores."""
    if kind.startswith("cpu"):
        return ""
    from sluice.gateway.cluster.ray.devices import free_instance, gpu_uuid

    if kind.startswith("mig-"):
        return free_instance(kind.removeprefix("mig-"))
    return gpu_uuid(str(ray.get_gpu_ids()[0]))
