"""The queues of a model: one for each batch key, and more for entries that only some partitions may run."""

from sluice.batcher.queues.queue import Queue
from sluice.batcher.queues.queue_table import QueueTable, base_key
from sluice.batcher.state import Entry, ModelState, Request
from tests.support.scheduling.builders import ONE, S, arrival, model, serving, spec_of


def table_of(*keys: str) -> tuple[QueueTable, list[ModelState]]:
    scheduler = serving(spec_of([model(key) for key in keys]), ONE)
    return scheduler.dispatcher.fleet.queues, list(scheduler.dispatcher.models.values())


def entry_of(queue: Queue) -> Entry:
    scheduler = serving(spec_of([model("m:1")]), ONE)
    request = Request(arrival(1, S), scheduler.pipelines["m:1"])
    return Entry(request, 0, 1, None, queue.key, S, 0, 1)


def test_a_queue_without_entries_is_forgotten_unless_it_is_the_default() -> None:
    table, (state,) = table_of("m:1")
    shaped = table.get(("m:1", "x=8"))
    assert table.get(("m:1", "x=8")) is shaped
    for queue in (shaped, table.default[state]):
        table.forget_if_empty(queue)
    assert table.find(("m:1", "x=8")) is None
    assert table.find(("m:1", "")) is table.default[state]


def test_a_queue_with_entries_is_kept() -> None:
    table, (state,) = table_of("m:1")
    shaped = table.get(("m:1", "x=8"))
    assert not table.has_work(state)
    shaped.push(entry_of(shaped), S)
    table.forget_if_empty(shaped)
    assert table.find(("m:1", "x=8")) is shaped
    assert table.has_work(state)


def test_the_queue_of_one_partition_is_found_whatever_the_names_of_partitions_and_tensors_are() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=["GPU#0", "0"]), ONE)
    table, (first, second) = scheduler.dispatcher.fleet.queues, scheduler.dispatcher.fleet.partitions.values()
    own = [table.of_host("m:1", first), table.of_host("m:1", second), table.of_host("m:1", first, "x#0=8")]
    assert [queue.host for queue in own] == [first, second, first]
    assert [base_key(queue.key) for queue in own] == [("m:1", ""), ("m:1", ""), ("m:1", "x#0=8")]
    assert table.get(("m:1", "x=0.y#0")).host is None


def test_entries_that_only_some_partitions_may_run_wait_apart_by_kind_price_and_batch_key() -> None:
    table, _ = table_of("m:1")
    cheap = table.bound(("m:1", "x=8"), "cpu1", 1.0)
    assert table.bound(("m:1", "x=8"), "cpu1", 1.0) is cheap
    others = [
        table.get(("m:1", "x=8")),
        table.bound(("m:1", ""), "cpu1", 1.0),
        table.bound(("m:1", "x=8"), "cpu1", 0.5),
        table.bound(("m:1", "x=8"), "gpu", 1.0),
    ]
    assert [queue.only for queue in (cheap, *others)] == [
        ("cpu1", 1.0),
        None,
        ("cpu1", 1.0),
        ("cpu1", 0.5),
        ("gpu", 1.0),
    ]
    assert len({queue.key for queue in (cheap, *others)}) == 5
    assert table.bound_queues() == [cheap, *others[1:]]


def test_a_bound_queue_that_was_forgotten_is_bound_when_an_entry_comes_back_to_it() -> None:
    """As an entry does whose batch is retried."""
    table, _ = table_of("m:1")
    bound = table.bound(("m:1", "x=8"), "gpu", 0.25)
    table.forget_if_empty(bound)
    again = table.get(bound.key)
    assert again is not bound
    assert again.only == ("gpu", 0.25)


def test_a_batch_key_with_the_sign_of_a_bound_is_not_bound() -> None:
    table, _ = table_of("m:1")
    assert table.get(("m:1", "x@8")).only is None


def test_the_queues_of_a_model_go_with_it() -> None:
    table, (_, other) = table_of("m:1", "n:1")
    table.get(("n:1", "x=8"))
    table.remove(other)
    assert sorted(table.by_model) == ["m:1"]
