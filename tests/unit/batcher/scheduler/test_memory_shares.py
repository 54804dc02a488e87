from sluice.batcher.scheduler.memory_shares import MemoryShares


def shares(limit_bytes: int, owners: int) -> MemoryShares:
    memory = MemoryShares(limit_bytes)
    memory.join(owners)
    return memory


def test_a_single_owner_may_have_everything() -> None:
    memory = shares(100, 1)
    assert (memory.most_bytes, memory.available("a")) == (100, 100)
    memory.take("a", 100)
    assert memory.refusal("a", 1) == "0 of 100 are free"


def test_an_owner_may_have_its_part_and_the_half_that_belongs_to_nobody() -> None:
    memory = shares(100, 2)
    assert memory.most_bytes == 75
    memory.take("a", 70)
    assert memory.refusal("a", 5) is None
    assert memory.refusal("a", 6) == "30 of 100 are free, 25 of them are kept for others"
    assert memory.refusal("b", 30) is None
    assert memory.refusal("b", 31) == "30 of 100 are free"


def test_what_is_given_back_can_be_taken_again() -> None:
    memory = shares(100, 2)
    memory.take("a", 60)
    memory.take("a", 15)
    memory.give_back("a", 60)
    assert (memory.used_bytes, memory.available("a"), memory.available("b")) == (15, 60, 75)


def test_parts_get_smaller_as_owners_join_and_larger_as_they_leave() -> None:
    memory = shares(120, 1)
    memory.take("a", 110)
    memory.join()
    assert memory.refusal("b", 11) == "10 of 120 are free"  # its part is 30, but the first one had them before
    memory.give_back("a", 50)
    assert (memory.available("a"), memory.available("b")) == (30, 60)
    memory.join(2)  # four parts of 15
    assert (memory.most_bytes, memory.available("a"), memory.available("b")) == (75, 15, 30)
    memory.leave(3)
    assert memory.available("a") == 60


def test_a_request_without_tensors_is_never_refused() -> None:
    memory = shares(100, 2)
    memory.take("a", 75)
    assert memory.refusal("a", 0) is None
