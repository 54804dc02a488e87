"""Triton's quality assurance of the queues of its dynamic batcher, replayed in virtual time.

Named after the tests of L0_model_queue and L0_simple_ensemble. Unless noted, the delay is 10 s, batches have at most 8
rows, and a batch takes 1 ms.
"""

from collections.abc import Sequence

import pytest

from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PipelineConfig, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived, RequestCancelled
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy, TimeoutAction
from tests.support.scheduling.builders import MS, ONE, US, S, model, single, spec_of
from tests.support.scheduling.triton_batcher import DIRECT, Machine, Run, Sent, timeout_policy

LATEST = 2**64 - 1
DONE, FULL, EXPIRED = Outcome.COMPLETED, Outcome.REJECTED_QUEUE_FULL, Outcome.EVICTED_DEADLINE
WRAPPED = (
    PipelineConfig("m:1", (StageConfig("pre", "pre:1"), StageConfig("m", "m:1", (0,), request_keyed=True))),
    single("busy:1"),
)
"""An ensemble whose last step is the model; the step before takes almost no time."""


# -- L0_model_queue, on the model and within an ensemble


PIPELINES = [pytest.param(DIRECT, 0, id="custom"), pytest.param(WRAPPED, MS, id="ensemble")]


@pytest.mark.parametrize(("pipelines", "slack_ns"), PIPELINES)
def test_max_queue_size(pipelines: Sequence[PipelineConfig], slack_ns: int) -> None:
    policy = timeout_policy((8,), policy=QueuePolicy(max_queue_size=8))
    sent = [Sent(0, 8), *[Sent(100 * MS)] * 10]
    run = Run(policy, sent, pipelines=pipelines, took_ns={"m:1": S})
    assert run.outcomes() == [DONE] * 9 + [FULL] * 2
    assert run.stats == {8: 2}
    for request in (9, 10):
        assert 100 * MS <= run.ended[request][1] <= 100 * MS + slack_ns
        assert run.reasons[request] == "8 requests wait for model m:1"


@pytest.mark.parametrize(("pipelines", "slack_ns"), PIPELINES)
def test_policy_delay(pipelines: Sequence[PipelineConfig], slack_ns: int) -> None:
    delay = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=100_000)
    policy = timeout_policy((4, 8), policy=delay)
    run = Run(policy, [Sent(0), Sent(200 * MS, 2), Sent(200 * MS, 2)], pipelines=pipelines)
    assert (run.stats, run.batches) == ({4: 1, 1: 1}, [[1, 2], [0]])
    for request, due_ns in ((0, 10_001 * MS), (1, 201 * MS), (2, 201 * MS)):
        assert run.ended[request][0] is DONE
        assert due_ns <= run.ended[request][1] <= due_ns + slack_ns


@pytest.mark.parametrize(("pipelines", "slack_ns"), PIPELINES)
def test_policy_reject(pipelines: Sequence[PipelineConfig], slack_ns: int) -> None:
    policy = timeout_policy((4, 8), policy=QueuePolicy(default_timeout_us=100_000))
    run = Run(policy, [Sent(0), Sent(200 * MS, 2), Sent(200 * MS, 2)], pipelines=pipelines)
    assert (run.stats, run.outcomes()) == ({4: 1}, [EXPIRED, DONE, DONE])
    assert 100 * MS <= run.ended[0][1] <= 100 * MS + slack_ns


@pytest.mark.parametrize(
    ("policy", "timeout_ms", "expired_ms"),
    [
        pytest.param(QueuePolicy(default_timeout_us=1_000_000, allow_timeout_override=True), 100, 100, id="shorter"),
        pytest.param(QueuePolicy(default_timeout_us=1_000_000, allow_timeout_override=True), 10_000, 1000, id="longer"),
        pytest.param(QueuePolicy(default_timeout_us=1_000_000), 100, 100, id="a deadline beside the policy"),
        pytest.param(QueuePolicy(), 100, 100, id="a deadline without a default"),
        pytest.param(QueuePolicy(allow_timeout_override=True), 100, 100, id="a deadline though nothing to override"),
        pytest.param(
            QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=50_000),
            100,
            100,
            id="delayed, then late",
        ),
    ],
)
def test_timeout_override(policy: QueuePolicy, timeout_ms: int, expired_ms: int) -> None:
    run = Run(timeout_policy((4, 8), policy=policy), [Sent(0, timeout_ns=timeout_ms * MS)])
    assert run.ended == {0: (EXPIRED, expired_ms * MS)}


def test_a_shorter_timeout_of_a_request_that_overrides_that_of_a_delaying_level_delays() -> None:
    delay = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=1_000_000, allow_timeout_override=True)
    sent = [Sent(0, timeout_ns=100 * MS), Sent(200 * MS, 4)]
    run = Run(timeout_policy((4, 8), policy=delay), sent)
    assert (run.batches, run.done_ms) == ([[1], [0]], [10_001, 201])


def test_a_step_of_an_ensemble_gets_what_is_left_of_the_timeout() -> None:
    run = Run(timeout_policy((4, 8)), [Sent(0, timeout_ns=100 * MS)], pipelines=WRAPPED, took_ns={"pre:1": 60 * MS})
    assert run.ended == {0: (EXPIRED, 100 * MS)}


@pytest.mark.parametrize("delay_ns", [0, 10 * S])
def test_a_timeout_that_is_over_before_a_step_begins_ends_the_request_there(delay_ns: int) -> None:
    run = Run(
        timeout_policy((4, 8), delay_ns), [Sent(0, timeout_ns=50 * MS)], pipelines=WRAPPED, took_ns={"pre:1": 60 * MS}
    )
    assert run.ended == {0: (EXPIRED, 60 * MS)}


@pytest.mark.parametrize(("levels", "usual"), [(2, 2), (LATEST, LATEST), (LATEST, 2)])
def test_priority_levels(levels: int, usual: int) -> None:
    policy = timeout_policy((4,), levels=levels, default=usual)
    sent = [Sent(0, 2), Sent(0, 2), Sent(0, 2), Sent(500 * MS, 2, priority=1)]
    run = Run(policy, sent, busy_ns=S)
    assert (run.batches, run.done_ms) == ([[3, 0], [1, 2]], [1001, 1002, 1002, 1001])


def test_an_unknown_priority_is_the_default_one() -> None:
    policy = timeout_policy((), 0, levels=3, default=2)
    sent = [Sent(0, priority=3), Sent(0, priority=4), Sent(0, priority=0), Sent(0, priority=1), Sent(0, priority=2)]
    assert Run(policy, sent, busy_ns=S).batches == [[3, 1, 2, 4, 0]]


def test_priority_with_policy() -> None:
    policy = timeout_policy(
        (4,),
        levels=2,
        default=2,
        policies={
            1: QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=600_000),
            2: QueuePolicy(default_timeout_us=300_000, max_queue_size=2),
        },
    )
    sent = [
        Sent(100 * MS, 4, priority=1),
        Sent(200 * MS, 4, priority=2),
        Sent(500 * MS, 4, priority=1),
        Sent(900 * MS, 4, priority=2),
        Sent(900 * MS, 4),
        Sent(901 * MS, 4),
    ]
    run = Run(policy, sent, busy_ns=S)
    assert run.batches == [[2], [0], [3], [4]], "level 1 before level 2, and last of a level what waited too long"
    assert run.ended == {
        0: (DONE, 1002 * MS),
        1: (EXPIRED, 500 * MS),
        2: (DONE, 1001 * MS),
        3: (DONE, 1003 * MS),
        4: (DONE, 1004 * MS),
        5: (FULL, 901 * MS),
    }
    assert run.reasons[5] == "2 requests wait at level 2 for model m:1"


def test_the_rest_of_a_queue_is_sent_at_a_preferred_size_when_its_first_request_expires() -> None:
    policy = timeout_policy((2, 6), levels=2, default=2, policies={1: QueuePolicy(default_timeout_us=100_000)})
    run = Run(policy, [Sent(0, 1, priority=1), Sent(50 * MS, 2)])
    assert run.ended == {0: (EXPIRED, 100 * MS), 1: (DONE, 101 * MS)}


def test_the_rest_of_a_queue_is_sent_at_a_preferred_size_when_its_first_request_is_cancelled() -> None:
    run = Run(timeout_policy(), [Sent(0, 1), Sent(50 * MS, 2)], events=[(70 * MS, RequestCancelled(0))])
    assert run.ended == {0: (Outcome.CANCELLED_CLIENT, 70 * MS), 1: (DONE, 71 * MS)}


# -- beside another model on the same partition


@pytest.mark.parametrize(("levels", "last_ms"), [(0, 21), (2, 40)])
def test_a_partition_that_is_never_idle_is_shared_with_a_model_that_comes_first(levels: int, last_ms: int) -> None:
    """With priority levels it runs every other batch, since none of its batches closes while another one runs."""
    spec = spec_of([model("m:1", 1, timeout_policy((), 0, levels=levels, default=levels)), model("busy:1", 1)])
    answered_ns: dict[int, int] = {}

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        answered_ns.update((each.request, now_ns) for each in decisions if isinstance(each, CompleteRequest))

    simulator = Simulator(Scheduler(spec), Machine({}), observe)
    simulator.at(0, PartitionReady("cpu0", {"m:1": ONE, "busy:1": ONE}))
    for number in range(600):
        sent_ns = number * 990 * US
        simulator.at(sent_ns, RequestArrived(1000 + number, "busy:1", 1, sent_ns + S))
    for number in range(20):
        simulator.at(50 * MS, RequestArrived(number, "m:1", 1, 150 * MS))
    simulator.run()
    waited_ms = [round((answered_ns[number] - 50 * MS) / MS) for number in range(20)]
    assert (waited_ms[0], waited_ms[-1]) == (2, last_ms)


# -- L0_simple_ensemble: a full step ends the request once, and nothing hangs


FULL_STEPS = {
    "first": (StageConfig("m", "m:1"),),
    "second": (StageConfig("pre", "pre:1"), StageConfig("m", "m:1", (0,)), StageConfig("post", "pre:1", (1,))),
}


@pytest.mark.parametrize("full", FULL_STEPS)
def test_a_full_step_completes_the_request_with_one_error(full: str) -> None:
    policy = timeout_policy((), 0, policy=QueuePolicy(max_queue_size=1))
    pipelines = (PipelineConfig("m:1", FULL_STEPS[full]),)
    run = Run(policy, [Sent(0), Sent(MS), Sent(2 * MS)], pipelines=pipelines, took_ns={"m:1": 100 * MS})
    assert (run.outcomes(), run.stats) == ([DONE, DONE, FULL], {1: 2})


def test_a_full_step_withdraws_the_request_from_the_steps_beside_it() -> None:
    stages = (
        StageConfig("pre", "pre:1"),
        StageConfig("busy", "busy:1", (0,)),
        StageConfig("m", "m:1", (0,)),
        StageConfig("vote", None, (1, 2)),
    )
    policy = timeout_policy((), 0, policy=QueuePolicy(max_queue_size=1))
    run = Run(policy, [Sent(0), Sent(0)], pipelines=(PipelineConfig("m:1", stages),))
    assert run.ended == {0: (DONE, 2_000_001), 1: (FULL, 1)}
    assert run.rows == {"pre:1": 2, "busy:1": 1, "m:1": 1}
