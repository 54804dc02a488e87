"""Eviction: which models make room for one that is to be loaded."""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Resident(NamedTuple):
    """A model that a partition holds; of those of equal `priority` the one goes first that ran the longest ago.

    The order of the fields is that in which models go.
    """

    priority: int
    last_ns: int
    key: str
    memory_bytes: int


def choose_victims(
    residents: Iterable[Resident], lacking_bytes: int, priority: int, may_go: Callable[[str], bool]
) -> tuple[str, ...] | None:
    """The models that are to go for a model of that `priority`, so that as many bytes get free; None if there are none.

    None of a higher priority goes. `may_go` says of single models whether they may; it is asked of as few as suffice.
    """
    chosen: list[Resident] = []
    freed = 0
    for resident in sorted(residents):
        if freed >= lacking_bytes or resident.priority > priority:
            break
        if may_go(resident.key):
            chosen.append(resident)
            freed += resident.memory_bytes
    if freed < lacking_bytes:
        return None
    for resident in reversed(chosen[:-1]):  # what a larger one that came later makes needless stays
        if freed - resident.memory_bytes >= lacking_bytes:
            chosen.remove(resident)
            freed -= resident.memory_bytes
    return tuple(resident.key for resident in chosen)
