"""Numbers for what one side sends once and then refers to: templates of requests, and layouts of answers."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from sluice.gateway.front_ends.messages import TEMPLATES

UNNUMBERED = -1


class Numbered:
    """What has a number while the other side knows it. `used` is the last message that referred to it."""

    __slots__ = ("number", "used")

    def __init__(self) -> None:
        self.number = UNNUMBERED
        self.used = 0


Item = TypeVar("Item", bound=Numbered)


class Numbers(Generic[Item]):
    """At most TEMPLATES numbers: a new item gets that of the least recently used one when all are taken.

    The items of one message must be fewer, so that none loses its number before the message is sent.
    """

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._free = list(range(TEMPLATES - 1, -1, -1))
        self._message = 0

    def begin(self) -> None:
        """Begin a message."""
        self._message += 1

    def refers(self, item: Item) -> bool:
        """Have the message refer to an item; returns whether it has to be sent along, under a new number.

        O(1), or O(TEMPLATES) where the number is taken away from another item.
        """
        item.used = self._message
        if item.number != UNNUMBERED:
            return False
        if not self._free:
            self.withdraw([min(self._items.values(), key=lambda each: each.used)])
        item.number = self._free.pop()
        self._items[item.number] = item
        return True

    def withdraw(self, items: Iterable[Item]) -> None:
        """Take the numbers of items away, as those of a message that was not sent."""
        for item in items:
            if item.number != UNNUMBERED:
                del self._items[item.number]
                self._free.append(item.number)
                item.number = UNNUMBERED
