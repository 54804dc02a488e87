"""Cold starts of chains and trees: a request waits for one load, and for one more where it was not foreseen."""

import pytest

from sluice.batcher.interface.residency_config import Prewarm
from sluice.loadgen.papers.cold_chains import PREPARED, cold_chain
from sluice.loadgen.papers.engines.cold_tree import LOAD_NS, PATH, RUN_NS, ColdTree, TreeRequest, tree_stages


@pytest.mark.parametrize("stages", [1, 2, 5, 10])
def test_a_chain_takes_one_cold_start_however_long_it_is(stages: int) -> None:
    assert cold_chain(stages, Prewarm.OFF).overhead_ns == pytest.approx(stages * LOAD_NS, rel=0.01)
    assert cold_chain(stages, Prewarm.JIT).overhead_ns == pytest.approx(LOAD_NS, rel=0.01)


def test_just_in_time_models_hardly_lie_idle_before_they_run() -> None:
    just_in_time = cold_chain(10, Prewarm.JIT)
    speculative = cold_chain(10, Prewarm.SPECULATIVE)
    assert speculative.locked_ns == pytest.approx(sum(stage * RUN_NS for stage in range(10)), rel=0.01)
    assert just_in_time.locked_ns <= 0.05 * speculative.locked_ns


def tree_requests(prepared: str, **spread: float) -> list[TreeRequest]:
    tree = ColdTree(PREPARED[prepared], likelier=0.7, partitions=len(tree_stages()), seed=3, **spread)
    return tree.play(40)


def loads_waited_for(request: TreeRequest) -> float:
    return round(request.waited_ns / LOAD_NS, 2)


def test_a_branch_that_was_not_foreseen_costs_one_load_more_or_all_that_follow_where_nothing_more_is_prepared() -> None:
    replanned, stopped = tree_requests("jit, replan"), tree_requests("jit, stop")
    pairs = zip(replanned, stopped, strict=True)
    # Stopped at the second division, a request waits for three loads more, and at the first one for six.
    assert {(loads_waited_for(one), loads_waited_for(other)) for one, other in pairs} == {
        (1, 1),
        (2, 4),
        (2, 7),
        (3, 7),
    }
    assert all(loads_waited_for(each) == 1 for each in replanned[1:] if each.throughout)


def test_of_a_path_that_is_left_only_the_models_of_the_next_second_were_loaded() -> None:
    # A load takes as long as two stages.
    assert {(loads_waited_for(each), each.unused) for each in tree_requests("jit, replan")} == {(1, 0), (2, 2), (3, 4)}
    all_at_once = tree_requests("speculative")
    assert {(loads_waited_for(each), each.unused) for each in all_at_once} == {(1, 0), (2, 3), (2, 6), (3, 9)}
    assert {each.locked_ns for each in all_at_once} == {sum(stage * RUN_NS for stage in range(PATH))}


def test_models_are_idle_for_a_short_time_only_where_times_vary() -> None:
    just_in_time, all_at_once = (
        sum(request.locked_ns for request in tree_requests(prepared, spread=0.2))
        for prepared in ("jit, replan", "speculative")
    )
    assert 0 < just_in_time <= 0.05 * all_at_once
