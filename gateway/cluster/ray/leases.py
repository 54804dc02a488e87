"""Which gateway has which slot of a class, when several gateways share it.

A state machine without clock and I/O. A gateway renews its leases all the time; one that does not for `expiry_s` has
given them up. Every lease has a number, its epoch, which only grows: a gateway that was away does not get back what
another one has had since. The table may lose its memory (its process moves to another node); then it learns the leases
from those who have them, and grants nothing new until all of them had the time to say so.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Lease(NamedTuple):
    """A slot's gateway, and the number of the lease."""

    gateway: str
    epoch: int


class _Gateway:
    __slots__ = ("seen_s", "want")

    def __init__(self) -> None:
        self.seen_s = 0.0
        self.want = 0


class Leases:
    """The leases of `slots` slots, numbered from 0. Times are seconds of any clock that does not go back.

    `first_epoch` must be above all epochs of the tables before this one.
    """

    def __init__(self, slots: int, expiry_s: float, first_epoch: int, now_s: float) -> None:
        self._slots = slots
        self._expiry_s = expiry_s
        self._epoch = first_epoch
        self._learning_until_s = now_s + expiry_s
        self._gateways: dict[str, _Gateway] = {}
        self._leases: dict[int, Lease] = {}
        self._idle_since_s = dict.fromkeys(range(slots), now_s)

    @property
    def leases(self) -> Mapping[int, Lease]:
        """The lease of each slot that has one."""
        return self._leases

    @property
    def gateways(self) -> Mapping[str, int]:
        """The number of slots that each gateway wants."""
        return {name: each.want for name, each in self._gateways.items()}

    def wanted(self) -> int:
        """The number of slots that all gateways together can use."""
        return min(self._slots, sum(each.want for each in self._gateways.values()))

    def renew(self, gateway: str, want: int, held: Mapping[int, int], now_s: float) -> dict[int, int]:
        """Renew the leases that a gateway holds and wants to keep, slot by epoch, and grant others up to `want`.

        Returns all its leases; it has lost those that are not among them. Its leases that are not in `held` are free.
        """
        known = self._gateways.setdefault(gateway, _Gateway())
        known.seen_s, known.want = now_s, max(0, min(want, self._slots))
        self.expire(now_s)
        is_learning = now_s < self._learning_until_s
        kept: dict[int, int] = {}
        for slot, epoch in held.items():
            lease = self._leases.get(slot)
            if lease == (gateway, epoch) or (is_learning and lease is None and 0 <= slot < self._slots):
                kept[slot] = epoch
                self._leases[slot] = Lease(gateway, epoch)
                self._epoch = max(self._epoch, epoch + 1)
        for slot in [slot for slot, lease in self._leases.items() if lease.gateway == gateway and slot not in kept]:
            self._free(slot, now_s)
        self._give_up(gateway, kept, now_s)
        if not is_learning:
            self._grant(gateway, kept, held)
        return kept

    def leave(self, gateway: str, now_s: float) -> None:
        """Free all that a gateway has; it is gone."""
        self._gateways.pop(gateway, None)
        for slot in [slot for slot, lease in self._leases.items() if lease.gateway == gateway]:
            self._free(slot, now_s)

    def expire(self, now_s: float) -> None:
        """Free what gateways have that have not renewed in time."""
        for name in [name for name, each in self._gateways.items() if now_s - each.seen_s > self._expiry_s]:
            self.leave(name, now_s)

    def idle_s(self, slot: int, now_s: float) -> float:
        """The time for which no gateway has had the slot; 0 while one has it."""
        return 0.0 if slot in self._leases else now_s - self._idle_since_s[slot]

    def _give_up(self, gateway: str, kept: dict[int, int], now_s: float) -> None:
        """Free what the gateway does not want, and what is beyond its share while others have less than theirs."""
        shares, had = self._shares(), self._had()
        lacking = sum(max(0, shares[name] - had[name]) for name in shares if name != gateway)
        free = self._slots - len(self._leases)
        surplus = max(len(kept) - self._gateways[gateway].want, 0)
        for_others = min(max(len(kept) - shares[gateway], 0), max(lacking - free, 0))
        for slot in sorted(kept, reverse=True)[: max(surplus, for_others)]:
            del kept[slot]
            self._free(slot, now_s)

    def _grant(self, gateway: str, kept: dict[int, int], preferred: Mapping[int, int]) -> None:
        missing = self._shares()[gateway] - len(kept)
        free = [slot for slot in range(self._slots) if slot not in self._leases] if missing > 0 else []
        for slot in sorted(free, key=lambda slot: (slot not in preferred, slot))[: max(missing, 0)]:
            self._leases[slot] = Lease(gateway, self._epoch)
            kept[slot] = self._epoch
            self._epoch += 1

    def _shares(self) -> dict[str, int]:
        """The slots for each gateway: as many as it wants, or an equal part of what the others leave."""
        left, shares = self._slots, {}
        had = self._had()
        # Who has most gets what cannot be shared evenly, so that fewer slots change hands.
        order = sorted(self._gateways, key=lambda name: (self._gateways[name].want, had[name], name))
        for index, name in enumerate(order):
            shares[name] = min(self._gateways[name].want, left // (len(order) - index))
            left -= shares[name]
        return shares

    def _had(self) -> dict[str, int]:
        """The number of leases of each gateway."""
        had = dict.fromkeys(self._gateways, 0)
        for lease in self._leases.values():
            had[lease.gateway] += 1
        return had

    def _free(self, slot: int, now_s: float) -> None:
        del self._leases[slot]
        self._idle_since_s[slot] = now_s
