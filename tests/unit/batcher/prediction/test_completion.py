"""A request is predicted to be complete after the promised work before it and its own critical path."""

from sluice.batcher.prediction.backlog import promise
from sluice.batcher.prediction.completion import completion_ns
from sluice.batcher.prediction.pipeline_times import predict
from tests.support.scheduling.builders import MS, S, arrival, chain, single
from tests.unit.batcher.prediction.pipelines import Pipelines, entry_of, request_of

NOW_NS = 100 * MS


def predicted(*names: str, latency_ms: float = 1.0) -> Pipelines:
    """Pipelines of the model `m`, whose predictions are made."""
    pipelines = Pipelines({"m": latency_ms, "n": 2.0}, *(single("m", name=name) for name in names), chain("m", "n"))
    for pipeline in pipelines.by_name.values():
        predict(pipeline, 0)
    return pipelines


def complete_ns(pipelines: Pipelines, name: str, deadline_ns: int = S) -> int:
    event = arrival(9, deadline_ns, name)
    return completion_ns(event, pipelines.by_name[name], pipelines.fleet.queues, NOW_NS)


def queue_requests(pipelines: Pipelines, name: str, count: int, deadline_ns: int) -> None:
    """Queue admitted requests of one row, whose work is promised."""
    pipeline = pipelines.by_name[name]
    for number in range(count):
        request = request_of(pipeline, number, deadline_ns=deadline_ns)
        promise(request.work.total, 1)
        pipelines.fleet.queues.default[pipelines.fleet.models["m"]].push(
            entry_of(request, sequence=number), deadline_ns
        )


def test_on_an_idle_machine_a_request_takes_its_critical_path() -> None:
    pipelines = predicted("one")
    assert complete_ns(pipelines, "one") == NOW_NS + MS
    assert complete_ns(pipelines, "chain:1") == NOW_NS + 3 * MS


def test_promised_work_comes_first() -> None:
    pipelines = predicted("one")
    (group,) = pipelines.fleet.groups
    group.backlog_ns = 7 * MS
    assert complete_ns(pipelines, "one") == NOW_NS + 8 * MS
    assert complete_ns(pipelines, "chain:1") == NOW_NS + 10 * MS


def test_a_busy_partition_is_waited_for() -> None:
    pipelines = predicted("one")
    pipelines.fleet.partitions["cpu0"].free_at_ns = NOW_NS + 4 * MS
    assert complete_ns(pipelines, "one") == NOW_NS + 5 * MS


def test_a_request_overtakes_those_with_later_deadlines() -> None:
    pipelines = Pipelines({"m": 1.0}, single("m", name="one"))
    predict(pipelines.by_name["one"], 0)
    queue_requests(pipelines, "one", 6, deadline_ns=2 * S)
    assert complete_ns(pipelines, "one", deadline_ns=3 * S) == NOW_NS + 7 * MS
    assert complete_ns(pipelines, "one", deadline_ns=S) == NOW_NS + MS
