"""Models that the configuration pins, or ranks, are so as well when clients bring them."""

from pathlib import Path

from sluice.batcher.interface.events import PartitionLost
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings
from tests.unit.gateway.deployment.deployer_bench import Served
from tests.unit.gateway.deployment.test_deployer import in_loop, save

BOTH = """
stages:
  first: {model: m, inputs: {x: request.x}}
  second: {model: n, inputs: {x: request.x}}
outputs: {y: first.y, z: second.y}
"""


def pinning(repository: Path, name: str, memory_bytes: int) -> Served:
    """A gateway on demand that has a model pinned, over files of 1000 bytes."""
    for each in ("k", "m", "n"):
        save(repository, each, size=1000)
    settings = ResidencySettings(LoadingMode.DEMAND, pinned=(name,))
    return Served(repository, memory_bytes=memory_bytes, residency=settings)


def pinned(gateway: Served) -> list[str]:
    return [model.key for model in gateway.scheduler.spec.models if model.pinned]


@in_loop
async def test_of_models_that_come_together_the_pinned_one_has_the_room_there_is(tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "pipeline.yaml").write_text(BOTH)
    for name in ("m", "n"):
        gateway = pinning(tmp_path, name, memory_bytes=1500)
        await gateway.deployer.load("both")
        await gateway.settle()
        assert pinned(gateway) == [f"{name}:1@1"]
        assert gateway.executor.orders == [f"load {name}:1@1"]
        gateway.runtime.close()


@in_loop
async def test_a_pinned_model_is_pinned_in_every_revision(tmp_path: Path) -> None:
    gateway = pinning(tmp_path, "m", memory_bytes=2500)
    await gateway.deployer.load("m")
    save(tmp_path, "m", latency_ms=2.5, size=1000)
    await gateway.deployer.load("m")
    await gateway.settle()
    assert pinned(gateway) == ["m:1@2"]
    await gateway.deployer.unload("m")
    await gateway.deployer.load("n")
    await gateway.deployer.load("m")
    await gateway.settle()
    assert pinned(gateway) == ["m:1@4"]
    # What comes later finds no room, and the pinned one stays.
    await gateway.deployer.load("k")
    await gateway.settle()
    assert gateway.executor.orders[-1] == "load m:1@4"
    assert gateway.scheduler.dispatcher.fleet.partitions["cpu0"].models == {"m:1@4", "n:1@3"}
    gateway.runtime.close()


@in_loop
async def test_a_model_is_brought_where_a_worker_is_up(tmp_path: Path) -> None:
    save(tmp_path, "m", size=1000)
    gateway = Served(tmp_path, memory_bytes=2500, count=2)
    await gateway.settle()
    gateway.executor.report(PartitionLost("cpu0", "it died"))
    await gateway.settle()
    await gateway.deployer.load("m")
    assert gateway.scheduler.dispatcher.fleet.partitions["cpu1"].models == {"m:1@1"}
    gateway.runtime.close()
