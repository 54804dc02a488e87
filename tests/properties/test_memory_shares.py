"""Owners that take and give back memory in any order, while others join and leave."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.batcher.scheduler.memory_shares import MemoryShares

LIMIT = 1000


class MemoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryShares(LIMIT)
        self.owners: list[int] = []
        self.next_owner = 0
        self.taken: list[tuple[int, int]] = []
        self.as_divided = True  # nothing is held that was taken when the parts were larger

    def has(self, owner: int) -> int:
        return sum(nbytes for each, nbytes in self.taken if each == owner)

    @property
    def part(self) -> int:
        return LIMIT // (2 * len(self.owners))

    @rule()
    def join(self) -> None:
        self.owners.append(self.next_owner)
        self.next_owner += 1
        self.memory.join()
        self.as_divided = not self.taken

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.owners.remove(data.draw(st.sampled_from(self.owners)))
        self.memory.leave()
        self.as_divided = not self.taken

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), nbytes=st.integers(0, LIMIT))
    def ask(self, data: st.DataObject, nbytes: int) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        refused = self.memory.refusal(owner, nbytes)
        if self.as_divided and self.has(owner) + nbytes <= self.part:
            assert refused is None, "an owner gets what is kept for it"
        if not self.taken:
            assert (refused is None) == (nbytes <= self.memory.most_bytes), "one alone may have the most"
        if refused is None:
            assert nbytes <= self.memory.available(owner)
            self.memory.take(owner, nbytes)
            self.taken.append((owner, nbytes))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        owner, nbytes = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.memory.give_back(owner, nbytes)
        self.as_divided |= not self.taken

    @invariant()
    def what_is_used_adds_up_and_keeps_the_limit(self) -> None:
        assert self.memory.used_bytes == sum(nbytes for _, nbytes in self.taken) <= LIMIT


TestMemoryShares = MemoryMachine.TestCase
TestMemoryShares.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
