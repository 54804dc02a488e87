"""Early commitment: the shares of stages on all paths, the configuration for a share, and what is played of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.loadgen.papers.engines.early_commitment import (
    Committed,
    EarlyCommitment,
    PathStage,
    PricedBackend,
    commit,
    path_shares,
)
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS

DIAMOND = (PathStage("a"), PathStage("b", (0,)), PathStage("c", (0,)), PathStage("d", (1, 2)))


@st.composite
def dags(draw: st.DrawFn) -> tuple[tuple[PathStage, ...], list[int]]:
    """Stages that take the outputs of any stages before them, and their times."""
    count = draw(st.integers(1, 7))
    sources = [draw(st.sets(st.integers(0, index - 1))) if index else set[int]() for index in range(count)]
    took_ns = draw(st.lists(st.integers(1, 10**9), min_size=count, max_size=count))
    return tuple(PathStage(str(index), tuple(sorted(each))) for index, each in enumerate(sources)), took_ns


def test_a_share_is_that_of_the_longest_path_through_a_stage() -> None:
    assert path_shares(DIAMOND, [10, 20, 60, 30], 1000) == [100, 333, 600, 300]


@settings(max_examples=200, deadline=None)
@given(dags(), st.integers(0, 10**10))
def test_the_shares_of_no_path_are_more_than_the_time_left(
    dag: tuple[tuple[PathStage, ...], list[int]], left_ns: int
) -> None:
    stages, took_ns = dag
    shares = path_shares(stages, took_ns, left_ns)
    longest = list(shares)
    for index, stage in enumerate(stages):
        longest[index] += max((longest[source] for source in stage.sources), default=0)
    assert max(longest) <= left_ns
    assert all(share >= 0 for share in shares)


def test_the_cheapest_configuration_within_a_share_is_kept() -> None:
    cheap = PricedBackend(1, 1.0, {"m": LatencyTable.from_ms({1: 10, 4: 30})})
    dear = PricedBackend(1, 5.0, {"m": LatencyTable.from_ms({1: 2, 4: 4})})
    chosen = {ms: commit((PathStage("m"),), (cheap, dear), ms * NS_PER_MS) for ms in (3, 5, 20, 40)}
    assert chosen == {
        3: [Committed(1, 1, NS_PER_MS)],
        5: [Committed(1, 4, NS_PER_MS)],
        20: [Committed(1, 4, 16 * NS_PER_MS)],
        40: [Committed(1, 4, 36 * NS_PER_MS)],
    }


def test_a_batch_closes_when_it_is_full_or_its_first_row_has_waited_and_runs_again_if_it_fails() -> None:
    backend = PricedBackend(1, 2.0, {"m": LatencyTable.from_ms({1: 10, 2: 12})})
    fails = iter([False, True, False])
    early = EarlyCommitment((PathStage("m"),), (backend,), lambda *_: 12 * NS_PER_MS, lambda: next(fails))
    ended_ns = early.play([0, NS_PER_MS, 20 * NS_PER_MS], 40 * NS_PER_MS)
    # The first two are a full batch at 1 ms. The third waits for the 28 ms that its share leaves, and fails once.
    assert [each / NS_PER_MS for each in ended_ns] == [13, 13, 72]
    assert early.cost == 2.0 * 3 * 0.012
