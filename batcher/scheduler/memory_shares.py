"""Memory that several owners take from one pool, of which a part is kept for each of them."""

from collections.abc import Hashable


class MemoryShares:
    """A pool of `limit_bytes` bytes: half is kept for the owners in equal parts, half is for those that come first.

    Of n owners each is guaranteed `limit_bytes // (2 * n)` bytes: what others take beyond their own parts comes out of
    the other half. One owner alone may therefore take `most_bytes`. When an owner joins, the parts of all get smaller.
    What was taken until then counts in full, so the new owner may have to wait for a part that others still have.

    `take` and `give_back` are O(1), `join` and `leave` O(owners that have taken something).
    """

    __slots__ = ("_beyond_bytes", "_owners", "_part_bytes", "_taken", "limit_bytes", "most_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.most_bytes = limit_bytes
        self.used_bytes = 0
        self._owners = 0
        self._part_bytes = 0
        self._beyond_bytes = 0  # taken by owners beyond their own parts
        self._taken: dict[Hashable, int] = {}  # of owners that have taken something

    def join(self, owners: int = 1) -> None:
        """Divide the pool among more owners."""
        self._divide(self._owners + owners)

    def leave(self, owners: int = 1) -> None:
        """Divide the pool among fewer owners; what those that leave still have counts until it is given back."""
        self._divide(self._owners - owners)

    def available(self, owner: Hashable) -> int:
        """Bytes that an owner may take now."""
        own_bytes = max(self._part_bytes - self._taken.get(owner, 0), 0)
        common_bytes = self.limit_bytes - self._owners * self._part_bytes - self._beyond_bytes
        return min(own_bytes + max(common_bytes, 0), self.limit_bytes - self.used_bytes)

    def refusal(self, owner: Hashable, nbytes: int) -> str | None:
        """The reason why an owner may not take that many bytes; None if it may."""
        available = self.available(owner)
        if nbytes <= available:
            return None
        free = self.limit_bytes - self.used_bytes
        kept = f", {free - available} of them are kept for others" if free > available else ""
        return f"{free} of {self.limit_bytes} are free{kept}"

    def take(self, owner: Hashable, nbytes: int) -> None:
        """Take bytes for which there is no refusal."""
        self._change(owner, nbytes)

    def give_back(self, owner: Hashable, nbytes: int) -> None:
        """Return bytes that an owner took."""
        self._change(owner, -nbytes)

    def _change(self, owner: Hashable, nbytes: int) -> None:
        if not nbytes:
            return
        before = self._taken.get(owner, 0)
        after = before + nbytes
        self.used_bytes += nbytes
        part = self._part_bytes
        if after > part or before > part:
            self._beyond_bytes += max(after - part, 0) - max(before - part, 0)
        if after:
            self._taken[owner] = after
        else:
            self._taken.pop(owner, None)

    def _divide(self, owners: int) -> None:
        self._owners = owners
        self._part_bytes = part = self.limit_bytes // (2 * owners) if owners else 0
        self.most_bytes = self.limit_bytes - max(owners - 1, 0) * part
        self._beyond_bytes = sum(max(taken - part, 0) for taken in self._taken.values())
