"""Ensembles that join what is there on time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import PipelineConfig, StageConfig, WhenConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    Member,
    RejectRequest,
    RevokeBatch,
)
from sluice.batcher.interface.events import (
    BatchFailed,
    BatchRevoked,
    CacheMiss,
    FailureCause,
    OutputsCombined,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.cut_offs import AHEAD_NS
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, arrival, completed, ensemble, model, serving, spec_of, step

TEN = LatencyTable.from_ms({1: 10})
KEYS = ("a:1", "b:1", "c:1")
DEADLINE = 100 * MS
CUT = DEADLINE - AHEAD_NS


def three(*, partitions: int = 3, late: Late = Late.SERVE) -> Scheduler:
    names = [f"cpu{number}" for number in range(partitions)]
    pipeline = ensemble(*KEYS, late=late, partial=True)
    return serving(spec_of([model(key, 1) for key in KEYS], [pipeline], partitions=names), TEN)


def batches(decisions: list[AnyDecision]) -> dict[str, int]:
    return {each.model: each.batch for each in decisions if isinstance(each, DispatchBatch)}


def until(scheduler: Scheduler, end_ns: int) -> list[AnyDecision]:
    decisions = []
    while (due_ns := scheduler.next_wakeup_ns()) is not None and due_ns <= end_ns:
        decisions += step(scheduler, due_ns)
    return decisions


def joined(decisions: list[AnyDecision]) -> list[CombineOutputs]:
    return [each for each in decisions if isinstance(each, CombineOutputs)]


def join(request: int, *absent: int) -> CombineOutputs:
    return CombineOutputs(Member(request, 3, 1), absent)


def done(request: int) -> CompleteRequest:
    return CompleteRequest(request, Outcome.COMPLETED)


def test_all_members_are_joined_where_they_are_there_on_time() -> None:
    scheduler = three()
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1")))
    for key in KEYS:
        last = step(scheduler, 10 * MS, completed(ran[key], 0, 10 * MS))
    assert last == [join(1)]
    assert step(scheduler, 10 * MS, OutputsCombined(1, 3)) == [done(1)]
    assert joined(until(scheduler, 2 * DEADLINE)) == []


def test_members_that_are_late_are_given_up() -> None:
    scheduler = three()
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1", memory_bytes=10)))
    for key in ("a:1", "c:1"):
        step(scheduler, 10 * MS, completed(ran[key], 0, 10 * MS))
    before = until(scheduler, CUT - 1)
    assert joined(before) == []
    assert joined(until(scheduler, CUT)) == [join(1, 1)]
    assert step(scheduler, CUT, OutputsCombined(1, 3)) == [done(1)]
    for batch in (ran["b:1"], *batches(before).values()):  # it was overdue, so that there is a copy
        assert scheduler.memory.used_bytes == 10  # a batch still reads its tensors
        assert step(scheduler, 2 * DEADLINE, completed(batch, 0, 2 * DEADLINE)) == []
    assert scheduler.memory.used_bytes == 0


def test_members_that_still_wait_are_withdrawn() -> None:
    scheduler = three(partitions=1)
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1")))
    (first,) = ran.values()
    sent = batches(step(scheduler, 10 * MS, completed(first, 0, 10 * MS)))
    held = [each for each in until(scheduler, CUT) if isinstance(each, CombineOutputs | RevokeBatch)]
    assert any(isinstance(each, CombineOutputs) and len(each.absent) == 2 for each in held)
    assert step(scheduler, CUT, OutputsCombined(1, 3))[-1:] == [done(1)]
    assert scheduler.queue_depths() == dict.fromkeys(KEYS, 0)
    assert sent


def test_the_first_member_is_enough_where_none_was_there_on_time() -> None:
    scheduler = three(late=Late.EVICT)
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1")))
    assert joined(until(scheduler, 120 * MS)) == []
    assert joined(step(scheduler, 130 * MS, completed(ran["b:1"], 0, 130 * MS))) == [join(1, 0, 2)]
    late = CompleteRequest(1, Outcome.COMPLETED_LATE)
    assert step(scheduler, 130 * MS, OutputsCombined(1, 3)) == [late]


def test_stages_that_only_a_late_member_needs_are_given_up_as_well() -> None:
    stages = (
        StageConfig("prep", "a:1"),
        StageConfig("deep", "b:1", (0,)),
        StageConfig("flat", "c:1"),
        StageConfig("vote", None, (1, 2), partial=True),
    )
    pipeline = ensemble(*KEYS, partial=True)
    pipeline = type(pipeline)("ensemble:1", stages)
    spec = spec_of([model(key, 1) for key in KEYS], [pipeline], partitions=["cpu0", "cpu1"])
    scheduler = serving(spec, TEN)
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1")))
    step(scheduler, 10 * MS, completed(ran["c:1"], 0, 10 * MS))
    assert joined(until(scheduler, CUT)) == [join(1, 1)]
    assert step(scheduler, CUT, OutputsCombined(1, 3)) == [done(1)]
    assert step(scheduler, DEADLINE, completed(ran["a:1"], 0, DEADLINE)) == []


def pipeline_of(*stages: StageConfig, partitions: int = 3) -> Scheduler:
    names = [f"cpu{number}" for number in range(partitions)]
    pipeline = PipelineConfig("ensemble:1", stages)
    return serving(spec_of([model(key, 1) for key in KEYS], [pipeline], partitions=names), TEN)


def test_a_member_is_given_up_once_where_combiners_that_are_cut_off_are_nested() -> None:
    scheduler = pipeline_of(
        StageConfig("quick", "a:1"),
        StageConfig("slow", "b:1"),
        StageConfig("first", None, (0, 1), partial=True),
        StageConfig("flat", "c:1"),
        StageConfig("vote", None, (2, 3), partial=True),
    )
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1", memory_bytes=10)))
    for key in ("a:1", "c:1"):
        step(scheduler, 10 * MS, completed(ran[key], 0, 10 * MS))
    cut = joined(until(scheduler, CUT))
    assert cut == [CombineOutputs(Member(1, 2, 1), (1,)), CombineOutputs(Member(1, 4, 1), (2,))]
    assert step(scheduler, CUT, OutputsCombined(1, 2)) == []
    assert step(scheduler, CUT, OutputsCombined(1, 4)) == [done(1)]
    for batch in list(scheduler.dispatcher.batches):
        assert scheduler.memory.used_bytes == 10
        step(scheduler, DEADLINE, completed(batch, 0, DEADLINE))
    assert scheduler.memory.used_bytes == 0


def test_a_late_member_that_another_stage_needs_goes_on_for_that_one() -> None:
    scheduler = pipeline_of(
        StageConfig("slow", "a:1"),
        StageConfig("flat", "b:1"),
        StageConfig("vote", None, (0, 1), partial=True),
        StageConfig("deep", "c:1", (0,)),
    )
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1")))
    step(scheduler, 10 * MS, completed(ran["b:1"], 0, 10 * MS))
    assert joined(until(scheduler, CUT)) == [CombineOutputs(Member(1, 2, 1), (0,))]
    assert step(scheduler, CUT, OutputsCombined(1, 2)) == []
    last = batches(step(scheduler, CUT, completed(ran["a:1"], 0, CUT)))
    end_ns = CUT + 10 * MS
    late = CompleteRequest(1, Outcome.COMPLETED_LATE)
    assert late in step(scheduler, end_ns, completed(last["c:1"], CUT, end_ns))


def test_a_combiner_for_unsure_rows_is_not_cut_off_before_it_is_known_which_they_are() -> None:
    scheduler = pipeline_of(
        StageConfig("base", "a:1"),
        StageConfig("quick", "b:1"),
        StageConfig("slow", "c:1"),
        StageConfig("vote", None, (1, 2), WhenConfig(0, 0, 0.8), partial=True),
    )
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1")))
    step(scheduler, 10 * MS, completed(ran["b:1"], 0, 10 * MS))
    assert joined(until(scheduler, DEADLINE)) == []
    unsure = completed(ran["a:1"], 0, DEADLINE, 0.5)
    assert joined(step(scheduler, DEADLINE, unsure)) == [join(1, 2)]


def test_the_memory_of_a_request_is_kept_until_the_driver_is_done_with_a_member_that_was_given_up() -> None:
    scheduler = pipeline_of(
        StageConfig("recalled", "a:1", uses_cache=True),
        StageConfig("slow", "b:1"),
        StageConfig("flat", "c:1"),
        StageConfig("vote", None, (0, 1, 2), partial=True),
    )
    ran = batches(step(scheduler, 0, arrival(1, DEADLINE, "ensemble:1", memory_bytes=10)))
    step(scheduler, 10 * MS, completed(ran["c:1"], 0, 10 * MS))
    assert joined(until(scheduler, CUT)) == [join(1, 0, 1)]
    assert step(scheduler, CUT, OutputsCombined(1, 3)) == [done(1)]
    assert step(scheduler, CUT, CacheMiss(1, 0)) == []
    for batch in list(scheduler.dispatcher.batches):
        assert scheduler.memory.used_bytes == 10
        step(scheduler, DEADLINE, completed(batch, 0, DEADLINE))
    assert scheduler.memory.used_bytes == 0


QUICK, SLOW = StageConfig("quick", "a:1"), StageConfig("slow", "b:1")
FIRST = StageConfig("first", None, (0, 1), partial=True)
SHAPES = (
    ensemble(*KEYS, partial=True).stages,
    (QUICK, SLOW, FIRST, StageConfig("flat", "c:1"), StageConfig("vote", None, (2, 3), partial=True)),
    (QUICK, SLOW, FIRST, StageConfig("deep", "c:1", (0,)), StageConfig("vote", None, (1, 3), partial=True)),
)
"""Members of one combiner; one combiner as a member of another one; a member that others need as well."""


@settings(deadline=None, max_examples=60)
@given(data=st.data(), stages=st.sampled_from(SHAPES), partitions=st.integers(1, 3))
def test_each_request_has_one_outcome_whatever_is_late(
    data: st.DataObject, stages: tuple[StageConfig, ...], partitions: int
) -> None:
    scheduler = pipeline_of(*stages, partitions=partitions)
    held: dict[str, list[int]] = {f"cpu{number}": [] for number in range(partitions)}
    outcomes: dict[int, Outcome] = {}
    now_ns = came = 0

    def take(decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    held[decision.partition].append(decision.batch)
                case CombineOutputs():
                    take(step(scheduler, now_ns, OutputsCombined(decision.member.request, decision.member.stage)))
                case RevokeBatch():
                    for batches_of in held.values():
                        if decision.batch in batches_of:
                            batches_of.remove(decision.batch)
                            take(step(scheduler, now_ns, BatchRevoked(decision.batch)))
                case CompleteRequest() | FailRequest() | CancelRequest() | EvictRequest() | RejectRequest():
                    assert decision.request not in outcomes
                    outcomes[decision.request] = decision.outcome

    def end(name: str, *, fails: bool) -> None:
        batch = held[name].pop(0)
        event = BatchFailed(batch, FailureCause.BACKEND, "broken") if fails else completed(batch, now_ns - MS, now_ns)
        take(step(scheduler, now_ns, event))

    for _ in range(data.draw(st.integers(1, 20))):
        now_ns += data.draw(st.sampled_from([0, 5 * MS, 40 * MS]))
        take(until(scheduler, now_ns))
        act = data.draw(st.sampled_from(["arrive", "end", "end", "fail", "cancel"]))
        busy = [name for name in held if held[name]]
        if act == "arrive":
            came += 1
            take(step(scheduler, now_ns, arrival(came, now_ns + 60 * MS, "ensemble:1", memory_bytes=8)))
        elif act == "cancel" and came:
            take(step(scheduler, now_ns, RequestCancelled(data.draw(st.integers(1, came)))))
        elif busy:
            end(data.draw(st.sampled_from(busy)), fails=act == "fail")
    for _ in range(200):
        if len(outcomes) == came and not any(held.values()):
            break
        now_ns += MS
        take(until(scheduler, now_ns))
        for name in [each for each in held if held[each]]:
            end(name, fails=False)
    assert set(outcomes) == set(range(1, came + 1))
    assert not scheduler.requests
    assert scheduler.memory.used_bytes == 0
