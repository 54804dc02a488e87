"""Orders go to the partition that they name, on a worker or on a Triton server."""

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from sluice.batcher.interface.decisions import LoadModel, UnloadModel
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.mixed import MixedExecutor
from tests.support.scheduling.builders import dispatch

SERVER = TritonSettings("triton", "127.0.0.1:8001")
ON_WORKER, ON_SERVER = dispatch(1, [1], partition="cpu0"), dispatch(2, [2], partition="triton")


class Mixed:
    """An executor over workers and one server, both of which record their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        workers, server = MagicMock(), MagicMock()
        for name, double in (("workers", workers), ("server", server)):
            for method in ("start", "run", "revoke", "load", "unload"):
                getattr(double, method).side_effect = self._recorder(name, method)
            double.drain = self._drain(name)
        monkeypatch.setattr("sluice.gateway.executors.mixed.TritonPartition", lambda *_: server)
        self.executor = MixedExecutor(workers, [SERVER], {"triton": {}}, {}, lambda: 0)

    def _recorder(self, name: str, method: str) -> Any:
        return lambda *arguments: self.calls.append((name, method, *arguments))

    def _drain(self, name: str) -> Any:
        async def drain(*arguments: float) -> None:
            self.calls.append((name, "drain", *arguments))

        return drain


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> Mixed:
    return Mixed(monkeypatch)


def test_a_batch_runs_on_its_partition(mixed: Mixed) -> None:
    mixed.executor.run(ON_WORKER)
    mixed.executor.run(ON_SERVER)
    assert mixed.calls == [("workers", "run", ON_WORKER), ("server", "run", ON_SERVER)]


def test_a_model_is_loaded_and_unloaded_on_its_partition(mixed: Mixed) -> None:
    orders = LoadModel("cpu0", "m:1"), UnloadModel("cpu0", "m:1")
    mixed.executor.load(orders[0])
    mixed.executor.unload(orders[1])
    mixed.executor.load(LoadModel("triton", "m:1"))
    mixed.executor.unload(UnloadModel("triton", "m:1"))
    assert mixed.calls == [
        ("workers", "load", orders[0]),
        ("workers", "unload", orders[1]),
        ("server", "load", "m:1"),
        ("server", "unload", "m:1"),
    ]


def test_a_batch_is_taken_back_wherever_it_is(mixed: Mixed) -> None:
    mixed.executor.revoke(7)
    assert mixed.calls == [("workers", "revoke", 7), ("server", "revoke", 7)]


def test_calls_to_servers_end_before_the_workers(mixed: Mixed) -> None:
    asyncio.run(mixed.executor.drain(2.0))
    assert mixed.calls == [("server", "drain"), ("workers", "drain", 2.0)]


def test_batches_and_orders_of_remote_partitions_go_to_the_executor_over_remote_workers() -> None:
    workers, remote = MagicMock(), MagicMock(names={"edge-0"})
    executor = MixedExecutor(workers, [], {}, {}, lambda: 0, remote=remote)
    there = dispatch(3, [3], partition="edge-0")
    executor.run(there)
    executor.run(ON_WORKER)
    order = LoadModel("edge-0", "m:1")
    executor.load(order)
    executor.unload(UnloadModel("edge-0", "m:1"))
    executor.revoke(3)
    remote.run.assert_called_once_with(there)
    workers.run.assert_called_once_with(ON_WORKER)
    remote.load.assert_called_once_with(order)
    remote.unload.assert_called_once_with(UnloadModel("edge-0", "m:1"))
    remote.revoke.assert_called_once_with(3)
    workers.load.assert_not_called()


def test_files_of_models_go_to_the_partitions_that_they_are_for() -> None:
    workers, remote = MagicMock(), MagicMock(names={"edge-0"})
    executor = MixedExecutor(workers, [], {}, {}, lambda: 0, remote=remote)
    executor.add({}, {}, {"cpu0": {}, "edge-0": {}})
    workers.add.assert_called_once_with({}, {}, {"cpu0": {}})
    remote.add.assert_called_once_with({}, {"edge-0": {}})
    executor.remove(["p:1"], ["m:1"])
    remote.remove.assert_called_once_with(["m:1"])


def test_only_workers_of_this_machine_are_recycled() -> None:
    workers, remote = MagicMock(), MagicMock(names={"edge-0"})
    executor = MixedExecutor(workers, [], {}, {}, lambda: 0, remote=remote)
    assert not executor.recycle("edge-0")
    assert executor.recycle("cpu0")
    workers.recycle.assert_called_once_with("cpu0")


def test_without_partitions_elsewhere_batches_go_straight_to_the_workers() -> None:
    workers = MagicMock()
    assert MixedExecutor(workers, [], {}, {}, lambda: 0).run is workers.run
