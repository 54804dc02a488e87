from sluice.batcher.planner.fronts.conditioning import MAX_CUTS, MAX_NODES, open_up
from sluice.batcher.planner.problem.graph import Sources, tangle

N: Sources = ((), (), (0, 1), (1,))
"""2 after 0 and 1, 3 after 1: the smallest order that is not series-parallel."""


def test_an_n_is_opened_by_fixing_the_node_in_its_middle() -> None:
    opened = open_up(N)
    assert opened is not None
    assert opened.cuts == (1,)
    assert opened.origin == (0, 1, 1, 2, 3)
    assert opened.sources == ((), (), (), (0, 1), (2,))


def test_opening_leaves_all_longest_ways_as_they_are() -> None:
    sources: Sources = ((), (), (0,), (0, 1), (1,), (2, 3), (3, 4))
    opened = open_up(sources)
    assert opened is not None
    assert 1 <= len(opened.cuts) <= MAX_CUTS
    assert tangle(opened.sources) == 0
    ways = {tuple(opened.origin[node] for node in way) for way in _ways(opened.sources)}
    assert ways == set(_ways(sources))


def test_what_takes_many_cuts_and_what_is_too_large_is_not_opened() -> None:
    half = MAX_NODES // 2
    crown = tuple(tuple(sorted((node, (node + 1) % half))) for node in range(half))
    sources = ((),) * half + crown
    assert open_up(sources) is None
    assert open_up(((),) * (MAX_NODES + 1)) is None


def _ways(sources: Sources) -> list[tuple[int, ...]]:
    """All ways from a node without predecessor to one without successor."""
    ending = [node for node in range(len(sources)) if not any(node in direct for direct in sources)]

    def up(node: int) -> list[tuple[int, ...]]:
        return [(*way, node) for source in sources[node] for way in up(source)] or [(node,)]

    return [way for node in ending for way in up(node)]
