import asyncio
from typing import Any

import pytest

from sluice.batcher.interface.decisions import AcceptChange, RejectChange
from sluice.gateway.deployment.load_waiter import LoadWaiter, Placed
from sluice.models.errors import ConfigError, RejectedError
from tests.support.gateway.inventory import PlayedInventory
from tests.unit.gateway.deployment.test_deployer import in_loop


def placed(waiter: LoadWaiter, *partitions: str) -> asyncio.Future[Placed]:
    """Wait for the model m, which the scheduler has these partitions load."""
    coming = waiter.wait_loaded("m")
    waiter.answered(AcceptChange({"m": partitions}))
    return coming


@in_loop
async def test_a_model_has_come_when_all_partitions_have_reported_and_one_holds_it() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", [], {})
    inventory.partition_ready("b", [], {})
    coming = placed(waiter, "a", "b", "down")
    await asyncio.sleep(0)
    inventory.model_load_failed("a", "m", "no memory")
    await asyncio.sleep(0)
    assert not coming.done()
    inventory.model_loaded("b", "m")
    assert await coming == Placed(("a", "b", "down"))
    assert inventory.holders("m") == ["b"]


@in_loop
async def test_where_no_partition_is_up_the_first_one_that_loads_a_model_is_enough() -> None:
    inventory = PlayedInventory("a", "b")
    waiter = LoadWaiter(inventory)
    coming = placed(waiter, "a", "b")
    inventory.partition_ready("b", ["m"], {})
    assert await coming == Placed(("a", "b"))


@in_loop
async def test_a_model_has_not_come_when_it_failed_wherever_a_worker_is_left() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", [], {})
    inventory.partition_ready("b", [], {})
    coming = placed(waiter, "a", "b")
    inventory.partition_lost("b", "killed by signal 11")
    inventory.model_load_failed("a", "m", "no memory")
    assert await coming == Placed(("a", "b"), "no memory")


@in_loop
async def test_where_a_worker_is_lost_before_its_turn_the_next_one_loads_a_model() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", [], {})
    coming = placed(waiter, "a")
    inventory.partition_lost("a", "killed by signal 11")
    inventory.partition_ready("a", [], {})
    assert not coming.done()
    inventory.model_loaded("a", "m")
    assert await coming == Placed(("a",))


@in_loop
async def test_a_model_is_not_waited_for_over_more_than_three_workers() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    coming = placed(waiter, "down")
    for _ in range(3):
        inventory.partition_lost("down", "killed by signal 11")
    assert (await coming).failure == "down lost 3 workers before they had loaded it: killed by signal 11"


@in_loop
async def test_nobody_waits_for_models_and_workers_of_a_server_that_stops() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", ["n"], {})
    leaving = [asyncio.create_task(waiter.wait_unloaded("n")), asyncio.create_task(waiter.wait_ready("a"))]
    waiting: list[asyncio.Future[Any]] = [placed(waiter, "a"), *leaving]
    await asyncio.sleep(0)
    waiter.close()
    for each in waiting:
        with pytest.raises(RejectedError, match="the server is stopping"):
            await each


@in_loop
async def test_a_model_has_gone_when_nobody_holds_it() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", ["m"], {})
    inventory.partition_ready("b", ["m"], {})
    going = asyncio.create_task(waiter.wait_unloaded("m"))
    await asyncio.sleep(0)
    inventory.model_unloaded("a", "m")
    await asyncio.sleep(0)
    assert not going.done()
    inventory.partition_lost("b", "killed")
    await going


@in_loop
async def test_a_model_without_a_partition_is_not_waited_for() -> None:
    assert await placed(LoadWaiter(PlayedInventory("a"))) == Placed(())


@in_loop
async def test_all_models_of_a_rejected_change_get_the_reason() -> None:
    waiter = LoadWaiter(PlayedInventory("a"))
    for passing, kind in ((True, RejectedError), (False, ConfigError)):
        coming = [waiter.wait_loaded(model) for model in ("m", "n")]
        waiter.answered(RejectChange(("m", "n"), "there is no room", passing))
        for each in coming:
            with pytest.raises(kind, match="there is no room"):
                await each


@in_loop
async def test_an_answer_that_nobody_waits_for_any_more_is_ignored() -> None:
    waiter = LoadWaiter(PlayedInventory("a"))
    waiter.wait_loaded("m").cancel()
    waiter.answered(AcceptChange({"m": ()}))
    waiter.answered(RejectChange(("m",), "there is no room", passing=True))
