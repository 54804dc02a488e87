"""The graph of a pipeline's stages: their order, cycles and dependencies."""

from collections.abc import Collection, Iterable, Mapping

Needs = Mapping[str, Collection[str]]
"""The stages that each stage needs first, for every stage in the file's order."""


def topological_order(needs: Needs) -> list[str]:
    """Return the stages, each after those it needs, else in the given order; those on or behind a cycle are missing."""
    order: list[str] = []
    while ready := next((name for name in needs if name not in order and set(needs[name]) <= set(order)), None):
        order.append(ready)
    return order


def find_cycle(needs: Needs) -> list[str] | None:
    """Return a cycle in the direction of the data, its first stage repeated at the end; None if there is none."""
    placed = set(topological_order(needs))
    if len(placed) == len(needs):
        return None
    # Every remaining stage needs another remaining one, so walking back must meet itself.
    walk = [next(name for name in needs if name not in placed)]
    while True:
        before = next(name for name in needs[walk[-1]] if name not in placed)
        if before in walk:
            return [before, *reversed(walk[walk.index(before) :])]
        walk.append(before)


def reachable(needs: Needs, begin: Iterable[str]) -> set[str]:
    """Return the stages `begin` and everything that they need, directly or not."""
    found: set[str] = set()
    waiting = list(begin)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(needs[name])
    return found
