"""Triton's quality assurance of its dynamic batcher, replayed in virtual time.

Named after the tests of L0_batcher. Unless noted, the preferred sizes are 2 and 6, the delay is 10 s, batches have at
most 8 rows, and a batch takes 1 ms.
"""

import pytest

from sluice.batcher.interface.events import RequestCancelled
from sluice.batcher.interface.outcome import Outcome
from sluice.models.dynamic_batching import QueuePolicy
from tests.support.scheduling.builders import MS, S
from tests.support.scheduling.triton_batcher import Run, Sent, timeout_policy

DONE, EXPIRED = Outcome.COMPLETED, Outcome.EVICTED_DEADLINE


@pytest.mark.parametrize(
    ("sent", "stats", "done_ms"),
    [
        pytest.param([Sent(0, 2), Sent(S, 6)], {2: 1, 6: 1}, [1, 1001], id="static_batch_preferred"),
        pytest.param([Sent(0)], {1: 1}, [10_001], id="static_batch_lt_any_preferred"),
        pytest.param([Sent(0, 3)], {3: 1}, [10_001], id="static_batch_not_preferred"),
        pytest.param([Sent(0, 7)], {7: 1}, [1], id="static_batch_gt_max_preferred"),
        pytest.param([Sent(0, 1, "x=16"), Sent(0, 1, "x=8")], {1: 2}, [1, 10_001], id="multi_batch_different_shape"),
        pytest.param([Sent(0), Sent(0, 3)], {4: 1}, [10_001, 10_001], id="multi_batch_not_preferred"),
        pytest.param(
            [Sent(0), Sent(0, 3), Sent(S, 1, "x=8")],
            {4: 1, 1: 1},
            [1001, 1001, 11_001],
            id="multi_batch_not_preferred_different_shape",
        ),
        pytest.param(
            [Sent(0), Sent(0, 3), Sent(0, 1, "x=8"), Sent(0, 5, "x=8")],
            {4: 1, 6: 1},
            [1, 1, 2, 2],
            id="multi_batch_preferred_different_shape",
        ),
        pytest.param([Sent(0, 3), Sent(0, 7)], {3: 1, 7: 1}, [1, 2], id="multi_batch_gt_max_preferred"),
        pytest.param([Sent(0, 3), Sent(0, 4)], {3: 1, 4: 1}, [1, 10_001], id="multi_batch_sum_gt_max_preferred"),
        pytest.param([Sent(0), Sent(S)], {2: 1}, [1001, 1001], id="multi_same_output"),
        pytest.param([Sent(0)] * 6, {6: 1}, [1] * 6, id="multi_batch_use_biggest_preferred"),
        pytest.param([Sent(0)] * 3, {2: 1, 1: 1}, [1, 1, 10_001], id="multi_batch_use_best_preferred"),
    ],
)
def test_preferred_sizes(sent: list[Sent], stats: dict[int, int], done_ms: list[float]) -> None:
    run = Run(timeout_policy(), sent)
    assert (run.stats, run.done_ms) == (stats, done_ms)


def test_multi_batch_delayed_use_max_batch() -> None:
    run = Run(timeout_policy(), [Sent(S, 3), Sent(S, 4), Sent(11_500 * MS)], busy_ns=12 * S)
    assert (run.stats, run.done_ms) == ({8: 1}, [12_001] * 3)


@pytest.mark.parametrize(
    ("rows", "stats"),
    [
        pytest.param(4, {4: 1}, id="preferred_batch_only_aligned"),
        pytest.param(5, {4: 1, 1: 1}, id="preferred_batch_only_unaligned"),
        pytest.param(7, {6: 1, 1: 1}, id="preferred_batch_only_use_biggest_preferred"),
        pytest.param(3, {3: 1}, id="preferred_batch_only_use_no_preferred_size"),
    ],
)
def test_preferred_sizes_without_a_delay(rows: int, stats: dict[int, int]) -> None:
    assert Run(timeout_policy((4, 6), 0), [Sent(0)] * rows).stats == stats


def test_max_queue_delay_only_non_default() -> None:
    sent = [Sent(number * MS) for number in range(12)]
    run = Run(timeout_policy((), S), sent, max_batch=16)
    assert (run.stats, run.done_ms) == ({12: 1}, [1001] * 12)


def test_max_queue_delay_only_default() -> None:
    run = Run(timeout_policy((), 0), [Sent(0), *[Sent(100_000)] * 11], max_batch=16)
    assert (run.stats, run.done_ms) == ({1: 1, 11: 1}, [1, *[2] * 11])


def test_multi_batch_preserve_ordering() -> None:
    sent = [Sent(0)] * 12
    policy = timeout_policy((), 0, preserve_ordering=True)
    run = Run(policy, sent, max_batch=4, took_ns={1: 5 * MS}, partitions=3)
    assert (run.stats, run.done_ms) == ({4: 3}, [5] * 12)
    assert run.completed == list(range(12))


def test_without_preserve_ordering_a_batch_that_is_done_sooner_is_answered_sooner() -> None:
    run = Run(timeout_policy((), 0), [Sent(0)] * 8, max_batch=4, took_ns={1: 5 * MS}, partitions=2)
    assert run.done_ms == [5] * 4 + [1] * 4


def test_answers_in_order_do_not_wait_for_a_request_that_is_cancelled() -> None:
    policy = timeout_policy((), 0, preserve_ordering=True)
    cancellations = [(2 * MS, RequestCancelled(0)), (3 * MS, RequestCancelled(1))]
    run = Run(policy, [Sent(0)] * 4, max_batch=2, took_ns={1: 5 * MS}, partitions=2, events=cancellations)
    cancelled = Outcome.CANCELLED_CLIENT
    assert run.ended == {0: (cancelled, 2 * MS), 1: (cancelled, 3 * MS), 2: (DONE, 3 * MS), 3: (DONE, 3 * MS)}


def test_default_queue_policy_timeout_prompt_response() -> None:
    policy = timeout_policy((), 0, policy=QueuePolicy(default_timeout_us=1_000_000))
    run = Run(policy, [Sent(0), Sent(S)], took_ns={"m:1": 10 * S})
    assert run.ended == {0: (DONE, 10 * S), 1: (EXPIRED, 2 * S)}
    assert run.reasons == {1: ""}, "the text is 'Request timeout expired' and nothing else"


def test_a_batch_that_overruns_its_prediction_removes_no_request_from_the_queue() -> None:
    policy = timeout_policy((), 0, policy=QueuePolicy(default_timeout_us=1_000_000))
    run = Run(policy, [Sent(0), Sent(S)], took_ns={1: 10 * S})
    assert run.ended == {0: (DONE, 10 * S), 1: (EXPIRED, 2 * S)}
