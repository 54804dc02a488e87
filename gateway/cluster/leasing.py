"""The workers that the slots of a class try, keep and give up, so that several gateways share them.

The gateways do not know each other. A worker serves one gateway at a time, which has its lease. A gateway that is
refused learns who has the lease, and the holder learns who asked. So all see how many gateways want workers. A gateway
takes every worker that is free, up to the number that it wants. While another one asks that has at least two fewer, it
gives some up, down to its part. A gateway that died asks for nothing, and its leases end. The others notice when they
next try one of its workers, and take over the rest at once.

This is a state machine without clock and I/O: it gets times in seconds and returns what changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

MOST_KNOCKS_S = 4
"""The most tries in a second at workers that other gateways had when they were last tried."""
KNOCK_PAUSE_S = 1.0
"""The shortest time between two tries at such a worker."""
GIVEN_UP_PAUSE_S = 3.0
"""The same for a worker that was given up: the time in which another gateway gets it."""
ASKED_S = 6.0
"""A gateway that was not heard of for this time wants no workers."""
GIVE_UP_PAUSE_S = 1.0
"""The time between two steps of giving up; a step is at most a quarter of the workers."""
UNREACHABLE_S = 5.0
"""A slot whose worker was not reached for this time takes another address, if there is one."""
TICK_S = 0.25
NOT_WANTED = "given up: no worker is wanted there"


class _Asked(NamedTuple):
    """A gateway asked for a worker of ours at `at_s`, when it had that many `workers`."""

    workers: int
    at_s: float


class SlotChange(NamedTuple):
    """From now on, the slot is served by the worker at `address`, or by none."""

    slot: str
    address: str | None
    reason: str


class _Worker:
    """An address, and what is known of the worker there."""

    __slots__ = ("address", "away_since_s", "holder", "index", "leased", "listed", "slot", "try_again_s")

    def __init__(self, address: str, index: int) -> None:
        self.address = address
        self.index = index  # the slot that it prefers
        self.listed = True
        self.slot: str | None = None
        self.leased = False
        self.away_since_s = 0.0  # it has had a slot since then without a lease
        self.holder = ""  # the gateway that had the lease when it was last tried
        self.try_again_s = 0.0


class Leasing:
    """The addresses of a class of workers, and the slots of one gateway for them.

    `slots` are the names of the partitions. Call `step` after every other method, and when `next_step_s` says so.
    """

    def __init__(self, slots: Sequence[str]) -> None:
        self._slots = tuple(slots)
        self._wanted = len(self._slots)
        self._leaving: tuple[str, ...] = ()
        self._workers: dict[str, _Worker] = {}
        self._placed: dict[str, _Worker] = {}  # by slot
        self._asked: dict[str, _Asked] = {}  # by gateway
        self._give_up_s = 0.0
        self._knock_s = 0.0

    @property
    def without_slot(self) -> tuple[str, ...]:
        """The addresses for which there is no slot, although all slots are wanted."""
        if self._wanted < len(self._slots) or len(self._placed) < len(self._slots):
            return ()
        return tuple(each.address for each in self._workers.values() if each.slot is None and not each.holder)

    def offer(self, addresses: Sequence[str]) -> None:
        """These are the addresses of workers now.

        An address that is no longer there keeps its slot as long as its worker is leased, so that an answer that lacks
        workers by mistake does no harm.
        """
        for each in self._workers.values():
            each.listed = False
        for address in addresses:
            worker = self._workers.get(address)
            if worker is None:
                worker = self._workers[address] = _Worker(address, self._free_index())
            worker.listed = True

    def want(self, count: int, leaving: Sequence[str] = ()) -> None:
        """Have workers for `count` slots; see `WorkerSource`."""
        self._wanted = max(0, min(count, len(self._slots)))
        self._leaving = tuple(leaving)

    def leased(self, slot: str) -> None:
        """The slot got the lease of its worker."""
        worker = self._placed.get(slot)
        if worker is None:
            return
        worker.leased = True
        if worker.holder:
            self._forget(worker.holder)

    def lost(self, slot: str, now_s: float) -> None:
        """The slot's lease ended, but not because it was given up."""
        worker = self._placed.get(slot)
        if worker is not None:
            worker.leased, worker.away_since_s = False, now_s

    def refused(self, slot: str, holder: str, now_s: float) -> None:
        """The slot's worker is leased by the gateway `holder`; the slot is free for another worker."""
        worker = self._placed.pop(slot, None)
        if worker is not None:
            worker.slot, worker.leased, worker.holder = None, False, holder
            worker.try_again_s = now_s + KNOCK_PAUSE_S

    def asked(self, gateway: str, workers: int, now_s: float) -> None:
        """Another gateway, which has that many workers, tried to lease one of ours."""
        self._asked[gateway] = _Asked(max(workers, 0), now_s)

    @property
    def leases(self) -> int:
        """The number of workers of which the gateway has the lease."""
        return sum(1 for each in self._placed.values() if each.leased)

    def step(self, now_s: float) -> list[SlotChange]:
        """The slots that change now."""
        self._asked = {name: each for name, each in self._asked.items() if now_s - each.at_s < ASKED_S}
        return [*self._drop(), *self._shrink(), *self._give_up(now_s), *self._move_on(now_s), *self._place(now_s)]

    def next_step_s(self, now_s: float) -> float | None:
        """The time of the next step if nothing else happens before; None if nothing is to be done then."""
        waiting = any(each.slot is None for each in self._workers.values())
        free = len(self._placed) < self._wanted or any(not each.leased for each in self._placed.values())
        return now_s + TICK_S if (waiting and free) or self._asked else None

    # -- the parts of a step

    def _drop(self) -> list[SlotChange]:
        """Addresses that are no longer there and have no lease."""
        gone = [each for each in self._workers.values() if not each.listed and not each.leased]
        for each in gone:
            del self._workers[each.address]
        return [self._take(each, f"{each.address} is no longer listed") for each in gone if each.slot is not None]

    def _shrink(self) -> list[SlotChange]:
        """Slots that are to leave, which get no batches any more; beyond the number wanted, those without a lease."""
        leaving = [slot for slot in self._leaving if slot in self._placed]
        surplus = max(len(self._placed) - len(leaving) - self._wanted, 0)
        without = [
            slot
            for slot in reversed(self._slots)
            if slot in self._placed and slot not in leaving and not self._placed[slot].leased
        ]
        self._leaving = ()
        return [self._take(self._placed[slot], NOT_WANTED) for slot in (*leaving, *without[:surplus])]

    def _give_up(self, now_s: float) -> list[SlotChange]:
        """Workers beyond the part of this gateway, while others ask."""
        if not self._asked or now_s < self._give_up_s:
            return []
        leased = [slot for slot in self._slots if slot in self._placed and self._placed[slot].leased]
        # One that goes to the poorest must not make it richer than this gateway.
        if len(leased) - min(each.workers for each in self._asked.values()) < 2:
            return []
        others = self._asked.keys() | {each.holder for each in self._workers.values() if each.holder}
        part = -(-len(self._workers) // (1 + len(others)))
        surplus = max(1, min(len(leased) - part, len(leased) // 4))
        self._give_up_s = now_s + GIVE_UP_PAUSE_S
        given, names = [], ", ".join(sorted(self._asked))
        for slot in leased[-surplus:]:
            worker = self._placed[slot]
            worker.try_again_s = now_s + GIVEN_UP_PAUSE_S
            worker.holder = next(iter(self._asked))
            given.append(self._take(worker, f"given up: gateway {names} asks for workers"))
        return given

    def _move_on(self, now_s: float) -> list[SlotChange]:
        """Slots whose workers are not reached, if other addresses wait for a slot."""
        waiting = sum(1 for each in self._workers.values() if each.slot is None and self._may_try(each, now_s))
        away = [each for each in self._placed.values() if not each.leased and now_s - each.away_since_s > UNREACHABLE_S]
        free = self._wanted - len(self._placed)
        moved = []
        for each in away[: max(0, waiting - free)]:
            each.try_again_s = now_s + UNREACHABLE_S
            moved.append(self._take(each, f"{each.address} was not reached for {UNREACHABLE_S:g} s"))
        return moved

    def _place(self, now_s: float) -> list[SlotChange]:
        """Addresses that may be tried, on slots that are free."""
        placements = []
        # Those that were free when last seen come first.
        for each in sorted(self._workers.values(), key=lambda each: (bool(each.holder), each.try_again_s)):
            if len(self._placed) >= self._wanted:
                break
            if each.slot is not None or not self._may_try(each, now_s):
                continue
            if each.holder:
                self._knock_s = max(self._knock_s, now_s - KNOCK_PAUSE_S) + 1 / MOST_KNOCKS_S
            slot = self._slot_for(each)
            each.slot, each.away_since_s = slot, now_s
            self._placed[slot] = each
            placements.append(SlotChange(slot, each.address, ""))
        return placements

    # -- details

    def _may_try(self, worker: _Worker, now_s: float) -> bool:
        return worker.try_again_s <= now_s and (not worker.holder or self._knock_s <= now_s)

    def _take(self, worker: _Worker, reason: str) -> SlotChange:
        slot = worker.slot
        assert slot is not None
        del self._placed[slot]
        worker.slot, worker.leased = None, False
        return SlotChange(slot, None, reason)

    def _forget(self, gateway: str) -> None:
        """A worker of this gateway was free: it may be gone, so all its workers are tried at once."""
        self._asked.pop(gateway, None)
        for each in self._workers.values():
            if each.holder == gateway:
                each.holder, each.try_again_s = "", 0.0

    def _free_index(self) -> int:
        """The first slot that no address prefers; those beyond the slots prefer none."""
        taken = {each.index for each in self._workers.values()}
        return next(index for index in range(len(taken) + 1) if index not in taken)

    def _slot_for(self, worker: _Worker) -> str:
        """The slot that the worker had or prefers; else the first that is free."""
        if worker.index < len(self._slots) and self._slots[worker.index] not in self._placed:
            return self._slots[worker.index]
        return next(slot for slot in self._slots if slot not in self._placed)
