"""The served models follow a repository that is polled."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from sluice.gateway.deployment.poll import Poll
from tests.unit.gateway.deployment.deployer_bench import Served, served
from tests.unit.gateway.deployment.test_deployer import save

ALL = [("m:1", "READY", ""), ("n:1", "READY", ""), ("p:1", "READY", "")]


def states(gateway: Served) -> dict[str, str]:
    return {name: state for name, state, _ in gateway.index}


@served
async def test_what_comes_changes_and_goes_is_followed(gateway: Served, repository: Path) -> None:
    poll = Poll(gateway.deployer, 1)
    await poll.look()
    assert gateway.index == ALL
    orders = len(gateway.executor.orders)
    await poll.look()
    assert len(gateway.executor.orders) == orders
    save(repository, "n", latency_ms=2.5)
    shutil.rmtree(repository / "m")
    await poll.look()
    await gateway.settle()
    assert gateway.registry.pipeline("n", "").key.startswith("n:1@")
    assert gateway.index == [
        ("m:1", "UNAVAILABLE", "unloaded"),
        ("n:1", "READY", ""),
        ("p:1", "UNAVAILABLE", "model 'm', which it needs, was unloaded"),
    ]
    save(repository, "m")
    await poll.look()
    await gateway.settle()
    assert gateway.index == ALL


@served
async def test_what_did_not_load_is_tried_again_only_when_it_or_what_it_needs_has_changed(
    gateway: Served, repository: Path
) -> None:
    poll = Poll(gateway.deployer, 1)
    gateway.executor.broken |= {"m", "n"}
    await poll.look()
    assert states(gateway) == {"m:": "UNAVAILABLE", "n:": "UNAVAILABLE", "p:": "UNAVAILABLE"}
    orders = len(gateway.executor.orders)
    gateway.executor.broken.clear()
    await poll.look()
    assert len(gateway.executor.orders) == orders
    save(repository, "m", latency_ms=2.5)
    await poll.look()
    assert states(gateway) == {"m:1": "READY", "n:": "UNAVAILABLE", "p:1": "READY"}
    shutil.rmtree(repository / "n")
    await poll.look()
    assert states(gateway) == {"m:1": "READY", "p:1": "READY"}


@served
async def test_what_there_was_no_room_for_is_tried_at_the_next_look(gateway: Served, repository: Path) -> None:
    for name in ("m", "n"):
        save(repository, name, size=1000)
    tight = Served(repository, memory_bytes=3500)
    await tight.deployer.load("m")
    await tight.deployer.load("n")
    poll = Poll(tight.deployer, 1)
    save(repository, "m", size=2000)
    await poll.look()
    assert tight.registry.pipeline("m", "").key == "m:1@1"
    shutil.rmtree(repository / "n")
    await poll.look()
    await tight.settle()
    await poll.look()
    assert tight.registry.pipeline("m", "").key != "m:1@1"


@served
async def test_a_name_that_is_there_twice_is_not_served_until_it_is_there_once(
    gateway: Served, repository: Path
) -> None:
    first, second = repository / "first", repository / "second"
    save(first, "k")
    second.mkdir()
    both = Served(first, second)
    poll = Poll(both.deployer, 1)
    await poll.look()
    assert both.index == [("k:1", "READY", "")]
    save(second, "k", version=2)
    await poll.look()
    await both.settle()
    ((name, state, reason),) = both.index
    assert (name, state) == ("k:", "UNAVAILABLE")
    assert reason.endswith("expected one model or pipeline of that name")
    shutil.rmtree(first / "k")
    await poll.look()
    assert both.index == [("k:2", "READY", "")]


@served
async def test_what_failed_unexpectedly_is_tried_at_the_next_look(gateway: Served, repository: Path) -> None:
    poll = Poll(gateway.deployer, 1)

    async def broken(name: str) -> None:
        raise RuntimeError(f"out of order: {name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway.deployer, "load", broken)
        with pytest.raises(RuntimeError, match="out of order: m"):
            await poll.look()
    await poll.look()
    assert gateway.index == ALL


@served
async def test_files_that_are_being_written_are_left_alone_until_they_stay_the_same(
    gateway: Served, repository: Path
) -> None:
    poll = Poll(gateway.deployer, 1)
    await poll.look()
    path = save(repository, "m", latency_ms=2)
    whole, written = path.read_text(), [3, 9]

    async def write_more(_: float) -> None:
        if written:
            path.write_text(whole[: written.pop(0)])
        else:
            path.write_text(whole)

    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", write_more)
            await poll.look(1)
        assert gateway.registry.pipeline("m", "").key == "m:1@1"
        assert gateway.index == ALL
    await poll.look()
    assert gateway.registry.pipeline("m", "").key != "m:1@1"


@served
async def test_a_repository_that_is_not_there_for_a_moment_changes_nothing(gateway: Served, repository: Path) -> None:
    poll = Poll(gateway.deployer, 1)
    await poll.look()
    shutil.move(repository, f"{repository}-moved")
    with pytest.raises(FileNotFoundError):
        await poll.look()
    assert gateway.index == ALL
    shutil.move(f"{repository}-moved", repository)


@served
async def test_what_cannot_be_a_model_is_listed_while_it_is_there(gateway: Served, repository: Path) -> None:
    poll = Poll(gateway.deployer, 1)
    odd = os.fsencode(repository) + b"/mod\xe8le"
    os.mkdir(odd)
    await poll.look()
    (reason,) = [reason for name, _, reason in gateway.index if name == "mod\\xe8le:"]
    assert reason.startswith("'mod\\xe8le' cannot name a model or a pipeline")
    os.rmdir(odd)
    await poll.look()
    assert gateway.index == ALL
