"""Numbers for what one side sends once and then refers to: templates of requests, and layouts of answers."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from sluice.gateway.front_ends.messages import TEMPLATES

UNNUMBERED = -1


class Numbered:
    """Something that has a number while the other side knows it."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = UNNUMBERED


Item = TypeVar("Item", bound=Numbered)


class Numbers(Generic[Item]):
    """At most TEMPLATES numbers: a new item gets that of the least recently used one when all are taken.

    A message refers to fewer items, so that none of them loses its number before the message is sent.
    """

    def __init__(self) -> None:
        self._items: OrderedDict[Item, None] = OrderedDict()
        """The items with a number, the least recently used one first."""
        self._free = list(range(TEMPLATES - 1, -1, -1))

    def refers(self, item: Item) -> bool:
        """Have a message refer to an item; returns whether it has to be sent along, under a new number. O(1)."""
        if item.number != UNNUMBERED:
            self._items.move_to_end(item)
            return False
        if not self._free:
            self.withdraw([next(iter(self._items))])
        item.number = self._free.pop()
        self._items[item] = None
        return True

    def withdraw(self, items: Iterable[Item]) -> None:
        """Take the numbers of items away, as those of a message that was not sent."""
        for item in items:
            if item.number != UNNUMBERED:
                del self._items[item]
                self._free.append(item.number)
                item.number = UNNUMBERED
