import asyncio
from typing import Any

import pytest

from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.models.errors import RejectedError
from tests.support.gateway.inventory import PlayedInventory
from tests.unit.gateway.deployment.test_deployer import in_loop


@in_loop
async def test_a_model_has_come_when_all_partitions_have_reported_and_one_holds_it() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", [], {})
    inventory.partition_ready("b", [], {})
    coming = waiter.wait_loaded("m", ["a", "b", "down"])
    await asyncio.sleep(0)
    inventory.model_load_failed("a", "m", "no memory")
    await asyncio.sleep(0)
    assert not coming.done()
    inventory.model_loaded("b", "m")
    assert await coming == ""
    assert inventory.holders("m") == ["b"]


@in_loop
async def test_a_model_has_not_come_when_it_failed_wherever_a_worker_is_left() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", [], {})
    inventory.partition_ready("b", [], {})
    coming = waiter.wait_loaded("m", ["a", "b"])
    inventory.partition_lost("b", "killed by signal 11")
    inventory.model_load_failed("a", "m", "no memory")
    assert await coming == "no memory"


@in_loop
async def test_where_a_worker_is_lost_before_its_turn_the_next_one_loads_a_model() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", [], {})
    coming = waiter.wait_loaded("m", ["a"])
    inventory.partition_lost("a", "killed by signal 11")
    inventory.partition_ready("a", [], {})
    assert not coming.done()
    inventory.model_loaded("a", "m")
    assert await coming == ""


@in_loop
async def test_a_model_is_not_waited_for_over_more_than_three_workers() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    coming = waiter.wait_loaded("m", ["down"])
    for _ in range(3):
        inventory.partition_lost("down", "killed by signal 11")
    assert await coming == "down lost 3 workers before they had loaded it: killed by signal 11"


@in_loop
async def test_nobody_waits_for_models_and_workers_of_a_server_that_stops() -> None:
    inventory = PlayedInventory("a", "b", "down")
    waiter = LoadWaiter(inventory)
    inventory.partition_ready("a", ["n"], {})
    leaving = [asyncio.create_task(waiter.wait_unloaded("n")), asyncio.create_task(waiter.wait_ready("a"))]
    waiting: list[asyncio.Future[Any]] = [waiter.wait_loaded("m", ["a"]), *leaving]
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
