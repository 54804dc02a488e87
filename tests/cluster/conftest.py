"""A Ray cluster of a head and three nodes on this machine, for tests of gateways whose workers Ray places.

Each node has a directory of its own for locks of cores, as machines have: else no two of them could use the same core.
"""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from examples.digits.build import build_repository
from sluice.models.processes import process_tree

# Ray reads them when it is imported. The cluster has a token of its own.
os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_urlsafe(16),
    "RAY_USAGE_STATS_ENABLED": "0",
}

OBJECT_STORE_BYTES = 80 << 20
CORES = 2
FAST = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 0,
}
"""Settings by which Ray soon notices that a node is gone."""
WITHOUT_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
"""The time after which nodes end themselves without the head; it must not hold for this process."""


class RayMachines:
    """Nodes `n0`, `n1` and so on, and the head, which has no cores; `address` is that of the cluster."""

    def __init__(self, directory: Path) -> None:
        from ray.cluster_utils import Cluster

        self._directory = directory
        self._nodes: dict[str, Any] = {}
        head = {"num_cpus": 0, "node_name": "head", "include_dashboard": False, "_system_config": FAST}
        self._cluster = Cluster(initialize_head=True, head_node_args=head | {"object_store_memory": OBJECT_STORE_BYTES})
        self.address: str = self._cluster.address
        for _ in range(3):
            self.add()

    def add(self) -> str:
        """Start another node; returns its name."""
        name = f"n{len(self._nodes)}"
        locks = self._directory / name
        locks.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in ({"TMPDIR": str(locks)} | WITHOUT_HEAD).items():
                patch.setenv(variable, value)
            node = self._cluster.add_node(num_cpus=CORES, node_name=name, object_store_memory=OBJECT_STORE_BYTES)
        self._nodes[name] = node
        return name

    def processes(self, name: str) -> list[int]:
        """The raylet of a node, and the processes below it: actors, workers and what they have started."""
        return list(process_tree(self._nodes[name].all_processes["raylet"][0].process.pid))

    @property
    def head_process(self) -> int:
        """The process that knows all nodes and actors."""
        pid: int = self._cluster.head_node.all_processes["gcs_server"][0].process.pid
        return pid

    def raylets(self) -> list[int]:
        """The processes of all nodes that have not been killed, but the head's."""
        found = [node.all_processes["raylet"][0].process for node in self._nodes.values()]
        return [process.pid for process in found if process.poll() is None]

    @contextmanager
    def all_ended(self) -> Iterator[None]:
        """End, at the end of the block, all processes of nodes that there were at its beginning: some outlive nodes."""
        raylets = [*self.raylets(), self._cluster.head_node.all_processes["raylet"][0].process.pid]
        below = [os.pidfd_open(pid) for raylet in raylets for pid in process_tree(raylet) if pid != raylet]
        try:
            yield
        finally:
            for process in below:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                os.close(process)

    def shutdown(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, with an objective for times in which nodes are lost."""
    models = tmp_path_factory.mktemp("models")
    build_repository(models)
    for pipeline in models.glob("*/pipeline.yaml"):
        pipeline.write_text(pipeline.read_text().replace("slo_ms: 50", "slo_ms: 5000"))
    return models


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMachines]:
    cluster = RayMachines(tmp_path_factory.mktemp("ray"))
    try:
        yield cluster
    finally:
        cluster.shutdown()
