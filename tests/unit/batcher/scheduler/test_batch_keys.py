import pytest

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, StageConfig
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, FailureCause, RequestCancelled
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.spec_builder import build_spec
from sluice.models.pipelines.pipeline import Late, Pipeline, Stage, TensorSource
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

DELAY, RETRY = ReleaseReason.DELAY, ReleaseReason.RETRY


def keyed() -> Scheduler:
    """A model whose inputs have a variable dimension."""
    return serving(spec_of([model("m:1")], [single("m:1", keyed=True)]), GAINING)


def queues(scheduler: Scheduler) -> set[str]:
    return set(scheduler.dispatcher.fleet.queues.by_model["m:1"]) - {""}


def test_requests_of_different_shapes_never_share_a_batch() -> None:
    scheduler = keyed()
    decisions = step(scheduler, 0, arrival(1, S, key="x=16"), arrival(2, S, key="x=8"), arrival(3, S, key="x=16"))
    assert decisions == [dispatch(1, [1, 3])]
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(3, Outcome.COMPLETED),
    ]
    due_ns = scheduler.next_wakeup_ns()
    assert due_ns is not None
    assert step(scheduler, due_ns) == [dispatch(2, [2], DELAY)]


def test_the_key_of_a_request_does_not_matter_where_every_dimension_is_fixed() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, S, key="x=16"), arrival(2, S, key="x=8")) == [dispatch(1, [1, 2])]


@pytest.mark.parametrize("late", Late)
def test_requests_whose_pipelines_rename_inputs_crosswise_never_share_a_batch(late: Late) -> None:
    inputs = tuple(TensorSpec(name, DataType.FP32, (-1,)) for name in "xy")
    pair = ModelSpec("pair", 1, inputs, (TensorSpec("z", DataType.FP32, (1,)),), 8)

    def renaming(name: str, x: str, y: str) -> Pipeline:
        given = tuple(TensorSpec(each, DataType.FP32, (-1,)) for each in "ab")
        stage = Stage("s", {"x": TensorSource("request", x), "y": TensorSource("request", y)}, model="pair:1")
        return Pipeline(name, 1, given, pair.outputs, (stage,), {"z": (TensorSource("s", "z"),)}, 8, late=late)

    pipelines = [renaming("straight", "a", "b"), renaming("alike", "a", "b"), renaming("crossed", "b", "a")]
    scheduler = serving(build_spec([pair], pipelines, [PartitionConfig("cpu0", "cpu1")]), GAINING)
    names = ("straight:1", "crossed:1", "alike:1", "crossed:1")
    decisions = step(scheduler, 0, *(arrival(n + 1, S, name, key="a=2;b=3") for n, name in enumerate(names)))
    while len(batches := [each for each in decisions if isinstance(each, DispatchBatch)]) < 2:
        due_ns = scheduler.next_wakeup_ns()
        assert due_ns is not None
        decisions += step(scheduler, due_ns)
    assert [[member.request for member in batch.members] for batch in batches] == [[1, 3], [2, 4]]


def test_a_stage_after_a_variable_output_is_batched_by_the_output_s_shape() -> None:
    stages = (StageConfig("m", "m:1"), StageConfig("n", "n:1", (0,), source_keyed=True))
    spec = spec_of([model("m:1"), model("n:1")], [PipelineConfig("p:1", stages)], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, GAINING)
    assert step(scheduler, 0, arrival(1, S, "p:1")) == [dispatch(1, [1])]
    assert step(scheduler, 0, arrival(2, S, "p:1"), arrival(3, S, "p:1")) == [dispatch(2, [2, 3], partition="cpu1")]
    assert step(scheduler, MS, BatchCompleted(1, 0, MS, (), "y=3"), BatchCompleted(2, 0, MS, (), "y=5")) == [
        dispatch(3, [Member(1, 1, 1)], model="n:1"),
        dispatch(4, [Member(2, 1, 1), Member(3, 1, 1)], model="n:1", partition="cpu1"),
    ]


def test_a_queue_is_forgotten_with_its_last_entry() -> None:
    scheduler = keyed()
    for number in range(100):
        now_ns = number * 10 * MS
        assert step(scheduler, now_ns, arrival(number, now_ns + S, key=f"x={number}")) == [
            dispatch(number + 1, [number])
        ]
        assert queues(scheduler) <= {""}
        step(scheduler, now_ns + MS, completed(number + 1, now_ns, now_ns + MS))
    assert queues(scheduler) <= {""}


def test_a_queue_is_forgotten_when_its_last_entry_is_cancelled() -> None:
    scheduler = keyed()
    step(scheduler, 0, arrival(1, S, key="x=1"))
    step(scheduler, 0, arrival(2, S, key="x=2"))
    assert queues(scheduler) == {"x=2"}
    step(scheduler, 0, RequestCancelled(2))
    assert queues(scheduler) == set()


def test_a_retried_batch_and_what_came_meanwhile_meet_in_one_queue() -> None:
    scheduler = keyed()
    step(scheduler, 0, arrival(1, S, key="x=1"), arrival(2, S, key="x=1"))
    assert step(scheduler, MS, BatchFailed(1, FailureCause.BACKEND, "bad"), arrival(3, S, key="x=1")) == [
        dispatch(2, [1], RETRY)
    ]
    assert queues(scheduler) == {"x=1"}
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [2], RETRY),
    ]
