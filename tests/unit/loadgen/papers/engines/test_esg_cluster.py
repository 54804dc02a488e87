"""ESG's cluster and applications, and the bounds on what can be in time."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.loadgen.papers.engines.esg_bounds import long_run_bound, most_in_time_of
from sluice.loadgen.papers.engines.esg_cluster import (
    CELLS,
    LAYOUTS,
    SIZES,
    arrivals,
    objective_ns,
    own_time_ns,
    partitions,
    play,
    table_of,
)
from sluice.loadgen.papers.engines.esg_search import BRUTE_FORCE_US, OPTIONS, search_us
from sluice.loadgen.papers.engines.fluid_bound import FlowingRequests, most_in_time
from sluice.loadgen.papers.nodes_and_links import APPLICATIONS
from sluice.models.units import NS_PER_MS


def test_every_node_has_seven_slices_and_at_most_sixteen_cores() -> None:
    for layout in LAYOUTS:
        assert sum(slices for slices, _ in layout) == 7
        assert sum(cores for _, cores in layout) <= 16
    assert len({name.split("-")[0] for name in partitions()}) == 16


def test_objectives_are_parts_of_the_time_on_one_slice_with_one_core() -> None:
    own_ms = [own_time_ns(chain) / NS_PER_MS for chain in APPLICATIONS.values()]
    assert own_ms == pytest.approx([526, 1233, 1452, 1892])
    strict, moderate, relaxed = (objective_ns("depth-recognition", cell) / NS_PER_MS for cell in CELLS[:3])
    assert [strict, moderate, relaxed] == pytest.approx([986.4, 1233.0, 1479.6])
    assert [cell.demand for cell in CELLS[::3]] == pytest.approx([0.2125, 0.425, 0.85], abs=0.001)


def test_more_slices_and_cores_make_a_batch_quicker_and_larger_batches_a_row_cheaper() -> None:
    for size in SIZES:
        assert table_of("depth", 4, 8).latency_ns(size) < table_of("depth", 1, 2).latency_ns(size)
    one = table_of("depth", 1, 2)
    assert one.latency_ns(8) < 8 * one.latency_ns(1)


def test_all_planners_get_the_same_requests_and_a_light_load_is_served_in_time() -> None:
    cell = CELLS[0]
    assert list(arrivals(cell, 3, 3)) == list(arrivals(cell, 3, 3)) != list(arrivals(cell, 4, 3))
    run = play(cell, PlannerConfig("exact"), 3, 3)
    assert run.in_time == run.requests > 10
    assert run.late == 0
    assert run.cost > 0
    assert 0.2 < run.quick_busy < 0.8
    assert most_in_time_of(cell, 3, 3) == pytest.approx(run.requests)


def test_no_more_is_in_time_than_there_is_time_for() -> None:
    # Batches of two take 3 s, so ten seconds have room for 6.67 requests.
    batch_s = {"m": np.array([[2.0, 3.0]])}
    requests = [FlowingRequests(20, 4.0, ("m",))]
    assert most_in_time(requests, batch_s, (1, 2), np.array([10.0])) == pytest.approx(6.67, rel=0.03)
    assert most_in_time(requests, batch_s, (1, 2), np.array([10.0])) >= 6.66


def test_a_quick_batch_that_is_dear_is_needed_where_the_objective_is_short() -> None:
    batch_s = {"m": np.array([[2.0, 3.0]])}
    requests = [FlowingRequests(20, 2.0, ("m",))]
    assert most_in_time(requests, batch_s, (1, 2), np.array([10.0])) == pytest.approx(5.0, rel=0.03)
    assert most_in_time([FlowingRequests(20, 1.0, ("m",))], batch_s, (1, 2), np.array([10.0])) < 1.0


def best_schedule(came: Sequence[int], objective: int, batch: Sequence[int], now: int = 0) -> int:
    """The most of some requests of one stage that one machine has in time, by trying all batches in all orders."""
    best = 0
    for size in (1, 2):
        for members in combinations(range(len(came)), size):
            end = max(now, *(came[each] for each in members)) + batch[size - 1]
            if end <= min(came[each] for each in members) + objective:
                rest = [each for at, each in enumerate(came) if at not in members]
                best = max(best, size + best_schedule(rest, objective, batch, end))
    return best


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(2, 9),
    st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda both: (both[0], sum(both))),
)
def test_no_schedule_has_more_in_time_than_the_bound(came: list[int], objective: int, batch: tuple[int, int]) -> None:
    window = max(came) + objective - min(came)
    requests = [FlowingRequests(len(came), float(objective), ("m",))]
    bound = most_in_time(requests, {"m": np.array([batch], float)}, (1, 2), np.array([float(window)]))
    assert best_schedule(came, objective, batch) <= bound + 1e-6


def test_requests_that_have_time_do_not_lend_it_to_others() -> None:
    # Slow batches take 4 s and quick ones 1 s; on average stages could take 3 s, but those with 2 s need quick ones.
    batch_s = {"m": np.array([[4.0], [1.0]])}
    requests = [FlowingRequests(10, 2.0, ("m",)), FlowingRequests(10, 4.0, ("m",))]
    assert most_in_time(requests, batch_s, (1,), np.array([100.0, 0.0])) == pytest.approx(10, rel=0.01)


def test_a_strict_objective_under_heavy_load_is_out_of_reach_for_a_fifth_of_the_requests() -> None:
    bounds = {cell.name: long_run_bound(cell) for cell in CELLS if cell.load == "heavy"}
    assert bounds["strict-heavy"] == pytest.approx(0.806, abs=0.002)
    assert bounds["moderate-heavy"] == bounds["relaxed-heavy"] == pytest.approx(1.0)


def test_a_search_looks_at_fewer_paths_where_the_objective_is_strict() -> None:
    strict, moderate, relaxed = (search_us(cell) for cell in CELLS[:3])
    assert strict < relaxed < BRUTE_FORCE_US / 10
    assert moderate < BRUTE_FORCE_US / 10
    assert (OPTIONS, round(BRUTE_FORCE_US)) == (12, 748)
