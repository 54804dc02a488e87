from sluice.models.pipelines.graph import find_cycle, reachable, topological_order

DIAMOND = {"end": ["left", "right"], "right": ["start"], "left": ["start"], "start": [], "alone": []}


def test_order_follows_needs_and_else_the_file() -> None:
    assert topological_order(DIAMOND) == ["start", "right", "left", "end", "alone"]


def test_no_cycle() -> None:
    assert find_cycle(DIAMOND) is None
    assert find_cycle({}) is None


def test_a_cycle_is_reported_in_the_direction_of_the_data() -> None:
    assert find_cycle({"a": ["c"], "b": ["a"], "c": ["b"], "behind": ["a"], "before": []}) == ["a", "b", "c", "a"]
    assert find_cycle({"behind": ["loop"], "loop": ["loop"]}) == ["loop", "loop"]


def test_reachable_is_what_is_needed() -> None:
    assert reachable(DIAMOND, ["left"]) == {"left", "start"}
    assert reachable({"a": ["b"], "b": ["a"]}, ["a"]) == {"a", "b"}
