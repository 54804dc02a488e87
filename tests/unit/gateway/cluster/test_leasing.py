"""Gateways share workers: each takes what is free, gives up what is beyond its part, and takes over what is left."""

import pytest

from sluice.gateway.cluster.leasing import (
    ASKED_S,
    GIVEN_UP_PAUSE_S,
    KNOCK_PAUSE_S,
    MOST_KNOCKS_S,
    NOT_WANTED,
    TICK_S,
    UNREACHABLE_S,
    Leasing,
    SlotChange,
)


def listed(slot: str, address: str) -> SlotChange:
    return SlotChange(slot, address, "")


class World:
    """Workers that one gateway at a time leases, and gateways that step four times a second."""

    def __init__(self, workers: int) -> None:
        self.now_s = 0.0
        self.holders: dict[str, str | None] = {f"w{index}": None for index in range(workers)}
        self.gateways: dict[str, Leasing] = {}
        self.slots: dict[str, dict[str, str]] = {}
        self.refusals = 0

    def add(self, name: str, wanted: int | None = None) -> None:
        leasing = Leasing([f"edge-{index}" for index in range(len(self.holders))])
        leasing.offer(list(self.holders))
        if wanted is not None:
            leasing.want(wanted)
        self.gateways[name], self.slots[name] = leasing, {}

    def kill(self, name: str) -> None:
        del self.gateways[name], self.slots[name]
        self.holders = {worker: None if holder == name else holder for worker, holder in self.holders.items()}

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for name in list(self.gateways):
                self._step(name)
            self.now_s += TICK_S

    def _step(self, name: str) -> None:
        leasing, slots = self.gateways[name], self.slots[name]
        for slot, address, _ in leasing.step(self.now_s):
            if address is None:
                if self.holders[worker := slots.pop(slot)] == name:
                    self.holders[worker] = None
            elif (holder := self.holders[address]) is None:
                self.holders[address], slots[slot] = name, address
                leasing.leased(slot)
            else:
                self.refusals += 1
                leasing.refused(slot, holder, self.now_s)
                self.gateways[holder].asked(name, leasing.leases, self.now_s)

    def shares(self) -> dict[str, int]:
        return {name: list(self.holders.values()).count(name) for name in self.gateways}


def test_a_gateway_alone_takes_every_worker_on_the_slot_of_its_place_in_the_list() -> None:
    leasing = Leasing(["edge-0", "edge-1", "edge-2"])
    leasing.offer(["a:1", "b:1"])
    assert leasing.step(0.0) == [listed("edge-0", "a:1"), listed("edge-1", "b:1")]
    leasing.leased("edge-0")
    leasing.leased("edge-1")
    assert leasing.step(1.0) == []
    assert leasing.next_step_s(1.0) is None


def test_an_address_keeps_its_slot_while_others_come_and_go() -> None:
    leasing = Leasing(["edge-0", "edge-1", "edge-2"])
    leasing.offer(["a:1", "b:1"])
    leasing.step(0.0)
    leasing.leased("edge-1")
    leasing.offer(["b:1", "c:1"])
    assert leasing.step(1.0) == [SlotChange("edge-0", None, "a:1 is no longer listed"), listed("edge-2", "c:1")]


def test_a_leased_worker_that_is_no_longer_listed_stays_until_it_is_lost() -> None:
    leasing = Leasing(["edge-0"])
    leasing.offer(["a:1"])
    leasing.step(0.0)
    leasing.leased("edge-0")
    leasing.offer([])
    assert leasing.step(1.0) == []
    leasing.lost("edge-0", 2.0)
    assert leasing.step(2.0) == [SlotChange("edge-0", None, "a:1 is no longer listed")]


def test_addresses_beyond_the_slots_are_named() -> None:
    leasing = Leasing(["edge-0"])
    leasing.offer(["a:1", "b:1", "c:1"])
    leasing.step(0.0)
    assert leasing.without_slot == ("b:1", "c:1")


def test_a_slot_whose_worker_is_not_reached_moves_on_if_another_address_waits() -> None:
    leasing = Leasing(["edge-0"])
    leasing.offer(["a:1"])
    leasing.step(0.0)
    assert leasing.step(UNREACHABLE_S + 1) == []
    leasing.offer(["a:1", "b:1"])
    reason = f"a:1 was not reached for {UNREACHABLE_S:g} s"
    assert leasing.step(UNREACHABLE_S + 2) == [SlotChange("edge-0", None, reason), listed("edge-0", "b:1")]


def test_slots_that_are_to_leave_go_first_and_then_those_without_a_lease() -> None:
    slots = ["edge-0", "edge-1", "edge-2", "edge-3"]
    leasing = Leasing(slots)
    leasing.offer(["a:1", "b:1", "c:1", "d:1"])
    leasing.step(0.0)
    for slot in slots:
        leasing.leased(slot)
    leasing.lost("edge-1", 1.0)
    leasing.want(2, ("edge-0",))
    assert leasing.step(1.0) == [SlotChange("edge-0", None, NOT_WANTED), SlotChange("edge-1", None, NOT_WANTED)]
    leasing.want(0)
    assert leasing.step(2.0) == [], "a slot in use stays until it is to leave"
    leasing.want(3)
    assert leasing.step(3.0) == [listed("edge-0", "a:1")]


def test_a_slot_that_is_to_leave_goes_also_if_others_have_no_worker() -> None:
    leasing = Leasing(["edge-0", "edge-1", "edge-2"])
    leasing.offer(["a:1", "b:1"])
    leasing.step(0.0)
    leasing.leased("edge-0")
    leasing.leased("edge-1")
    leasing.want(1, ("edge-0",))
    assert leasing.step(1.0) == [SlotChange("edge-0", None, NOT_WANTED)]
    leasing.want(1, ("edge-1",))
    assert leasing.step(2.0)[0] == SlotChange("edge-1", None, NOT_WANTED)


def test_a_worker_of_another_gateway_is_tried_again_after_a_pause() -> None:
    leasing = Leasing(["edge-0"])
    leasing.offer(["a:1"])
    leasing.step(0.0)
    leasing.refused("edge-0", "other", 0.0)
    assert leasing.step(KNOCK_PAUSE_S / 2) == []
    assert leasing.step(KNOCK_PAUSE_S) == [listed("edge-0", "a:1")]


@pytest.mark.parametrize("workers", [4, 5, 16])
def test_a_second_gateway_gets_its_part_and_the_division_stays(workers: int) -> None:
    world = World(workers)
    world.add("a")
    world.run(1)
    assert world.shares() == {"a": workers}
    world.add("b")
    world.run(10 + workers)
    shares = world.shares()
    assert sorted(shares.values()) == [workers // 2, workers - workers // 2]
    before = dict(world.holders)
    world.run(30)
    assert world.holders == before


def test_three_gateways_have_a_third_each() -> None:
    world = World(9)
    for name in "abc":
        world.add(name)
        world.run(20)
    assert world.shares() == {"a": 3, "b": 3, "c": 3}


def test_a_third_gateway_gets_a_worker_where_the_parts_are_not_whole() -> None:
    world = World(4)
    for name in "ab":
        world.add(name)
        world.run(10)
    world.add("c")
    world.run(5)
    assert min(world.shares().values()) == 1
    before = dict(world.holders)
    world.run(30)
    assert world.holders == before


@pytest.mark.parametrize("asker", [1, 2])
def test_nothing_is_given_to_a_gateway_that_would_then_have_more(asker: int) -> None:
    leasing = Leasing(["edge-0", "edge-1", "edge-2"])
    leasing.offer(["a:1", "b:1", "c:1", "d:1"])
    leasing.step(0.0)
    leasing.leased("edge-0")
    leasing.leased("edge-1")
    leasing.asked("other", asker, 1.0)
    assert [each for each in leasing.step(1.0) if each.address is None] == []


def test_gateways_that_want_different_numbers_do_not_take_turns() -> None:
    world = World(8)
    world.add("a", wanted=2)
    world.run(1)
    world.add("b")
    world.run(30)
    assert world.shares() == {"a": 2, "b": 6}
    before = dict(world.holders)
    world.run(30)
    assert world.holders == before


def test_the_workers_of_a_gateway_that_died_are_taken_over_within_two_seconds() -> None:
    world = World(64)
    world.add("a")
    world.add("b")
    world.run(60)
    assert world.shares() == {"a": 32, "b": 32}
    world.kill("a")
    world.run(2)
    assert world.shares() == {"b": 64}
    world.run(ASKED_S)
    assert world.shares() == {"b": 64}


def test_a_gateway_that_comes_back_gets_its_part_again() -> None:
    world = World(4)
    world.add("a")
    world.add("b")
    world.run(10)
    world.kill("a")
    world.run(5)
    world.add("a")
    world.run(10)
    assert world.shares() == {"a": 2, "b": 2}


def test_tries_at_the_workers_of_others_are_few() -> None:
    world = World(64)
    world.add("a")
    world.add("b")
    world.run(60)
    before = world.refusals
    world.run(10)
    assert world.refusals - before <= 2 * MOST_KNOCKS_S * 10 + 2


def test_a_gateway_with_all_that_it_wants_asks_for_no_more() -> None:
    world = World(4)
    world.add("a", wanted=1)
    world.run(1)
    world.add("b")
    world.run(20)
    assert world.shares() == {"a": 1, "b": 3}


def test_a_worker_that_nobody_took_comes_back_after_a_pause() -> None:
    leasing = Leasing(["edge-0", "edge-1"])
    leasing.offer(["a:1", "b:1"])
    leasing.step(0.0)
    leasing.leased("edge-0")
    leasing.leased("edge-1")
    leasing.asked("other", 0, 1.0)
    assert leasing.step(1.0) == [SlotChange("edge-1", None, "given up: gateway other asks for workers")]
    assert leasing.step(1.0 + GIVEN_UP_PAUSE_S / 2) == []
    assert leasing.step(1.0 + GIVEN_UP_PAUSE_S) == [listed("edge-1", "b:1")]
