from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.reservations.assignments import cost_of
from sluice.batcher.reservations.reservations import Reservations
from sluice.batcher.reservations.search import ReservationRefusal
from sluice.batcher.reservations.timeline import Part
from sluice.batcher.state import Precedence, QueueKey

COMPLETION, LOSS, ARRIVAL, WAKE_UP = range(4)


class Graph(NamedTuple):
    """The sources of each stage of a pipeline, and its queue (None for a combiner)."""

    waits_for: tuple[tuple[int, ...], ...]
    queues: tuple[QueueKey | None, ...]


class Arrival(NamedTuple):
    """A request; `runs` is the share of a stage's possible rows that it runs, in quarters."""

    at_ns: int
    graph: int
    rows: int
    slo_ns: int
    max_cost: float | None
    runs: tuple[int, ...]


class Machine(NamedTuple):
    """Partitions with their models, and the exact time of a batch of 1, 2, … rows by (kind, model)."""

    partitions: tuple[tuple[PartitionConfig, tuple[str, ...]], ...]
    lengths: dict[tuple[str, str], tuple[int, ...]]


class Running(NamedTuple):
    """A batch on a partition, or unreserved work."""

    partition: str
    members: tuple[Part, ...]


class Executor:
    """Runs requests in virtual time with exactly the reserved latencies, and asserts the guarantees of reservations.

    `ended` is the end of each request's last stage; the other requests are `refused` or `evicted`. Unreserved work
    fills partitions whenever it fits before the next reservation.
    """

    def __init__(self, machine: Machine, graphs: Sequence[Graph], filler: Sequence[int] = ()) -> None:
        self.machine = machine
        self.graphs = graphs
        self.precedences = [
            Precedence(graph.waits_for, [queue is not None for queue in graph.queues]) for graph in graphs
        ]
        self.reservations = Reservations(config for config, _ in machine.partitions)
        for (kind, model), lengths in machine.lengths.items():
            self.reservations.learn(kind, model, lengths)
        for config, models in machine.partitions:
            self.reservations.ready(config.name, models, 0)
        self.kinds = {config.name: config.kind for config, _ in machine.partitions}
        self.filler = list(filler)
        self.events: list[tuple[int, int, int, Arrival | Running | str]] = []
        self.running: dict[str, Running | None] = dict.fromkeys(self.kinds)
        self.arrivals: dict[int, Arrival] = {}
        self.rows: dict[Part, int] = {}
        self.waiting: dict[Part, int] = {}
        self.open: dict[int, set[int]] = {}
        self.ended: dict[int, int] = {}
        self.refused: dict[int, ReservationRefusal] = {}
        self.evicted: set[int] = set()
        self.batches = 0
        self.sequence = 0

    def schedule(self, at_ns: int, priority: int, event: Arrival | Running | str) -> None:
        self.sequence += 1
        heappush(self.events, (at_ns, priority, self.sequence, event))

    def run(self, arrivals: Sequence[Arrival], losses: Sequence[tuple[int, str]] = ()) -> None:
        for at_ns, name in losses:
            self.schedule(at_ns, LOSS, name)
        for arrival in arrivals:
            self.schedule(arrival.at_ns, ARRIVAL, arrival)
        while self.events or any(self.due(name) is not None for name in self.running):
            dues = [due for name, running in self.running.items() if running is None and (due := self.due(name))]
            now_ns = min([*dues, *(event[0] for event in self.events[:1])])
            while self.events and self.events[0][0] == now_ns:
                _, _, _, event = heappop(self.events)
                if isinstance(event, Arrival):
                    self.arrive(event, now_ns)
                elif isinstance(event, Running):
                    self.complete(event, now_ns)
                else:
                    self.lose(event, now_ns)
                check(self.reservations)
            for name in [name for name, running in self.running.items() if running is None]:
                self.dispatch(name, now_ns)
            check(self.reservations)

    def due(self, name: str) -> int | None:
        return self.reservations.timelines[name].due_ns()

    def arrive(self, arrival: Arrival, now_ns: int) -> None:
        request = len(self.arrivals)
        self.arrivals[request] = arrival
        queues = self.graphs[arrival.graph].queues
        deadline_ns = now_ns + arrival.slo_ns
        before = picture(self.reservations)
        refusal = self.reservations.reserve(
            request, self.precedences[arrival.graph], queues, arrival.rows, deadline_ns, now_ns, arrival.max_cost
        )
        if refusal is not None:
            self.refused[request] = refusal
            assert picture(self.reservations) == before
            assert request not in self.reservations
            return
        if arrival.max_cost is not None:
            assert reserved_cost(self.reservations, request) <= arrival.max_cost
        self.open[request] = set(range(len(queues)))
        self.advance(request, now_ns)

    def advance(self, request: int, now_ns: int) -> None:
        """Queue or skip every stage that waits for nothing any more, combiners at once."""
        arrival = self.arrivals[request]
        graph = self.graphs[arrival.graph]
        open_stages = self.open[request]
        for stage in sorted(open_stages):
            part = (request, stage)
            if part in self.rows or open_stages & set(graph.waits_for[stage]):
                continue
            offered = min((self.rows[request, source] for source in graph.waits_for[stage]), default=arrival.rows)
            self.rows[part] = -(-offered * arrival.runs[stage] // 4) if graph.waits_for[stage] else offered
            if graph.queues[stage] is None or not self.rows[part]:
                open_stages.remove(stage)
                self.reservations.settled(request, stage)
            else:
                self.waiting[part] = self.rows[part]
        if not open_stages:
            self.ended[request] = now_ns
            self.reservations.forget(request)

    def complete(self, batch: Running, now_ns: int) -> None:
        if self.running.get(batch.partition) is not batch:
            return  # the batch was lost
        self.running[batch.partition] = None
        for request, stage in batch.members:
            if request in self.open and request not in self.evicted:
                self.open[request].remove(stage)
                self.reservations.settled(request, stage)
        for request, _ in batch.members:
            if request not in self.ended and request not in self.evicted:
                self.advance(request, now_ns)

    def lose(self, name: str, now_ns: int) -> None:
        batch = self.running.pop(name, None)
        for request in self.reservations.lost(name, now_ns):
            self.evict(request)
        for request, stage in batch.members if batch is not None else ():
            if request not in self.evicted:
                if self.reservations.reopen(request, stage, now_ns):
                    self.waiting[request, stage] = self.rows[request, stage]
                else:
                    self.evict(request)

    def evict(self, request: int) -> None:
        self.evicted.add(request)
        self.reservations.forget(request)
        for part in [part for part in self.waiting if part[0] == request]:
            del self.waiting[part]

    def dispatch(self, name: str, now_ns: int) -> None:
        assert self.reservations.expire(name, now_ns) == []
        run = self.reservations.runnable(name, now_ns, lambda request, stage: self.waiting.get((request, stage), 0))
        due_ns = self.due(name)
        if run is None:
            assert due_ns is None or due_ns > now_ns
            if self.filler and (due_ns is None or now_ns + self.filler[-1] <= due_ns):
                self.start(Running(name, ()), now_ns, now_ns + self.filler.pop())
            return
        queues = {self.graphs[self.arrivals[request].graph].queues[stage] for request, stage in run.members}
        (queue,) = queues
        assert queue is not None
        assert run.rows == sum(self.waiting.pop(part) for part in run.members)
        end_ns = now_ns + self.machine.lengths[self.kinds[name], queue[0]][run.rows - 1]
        assert end_ns <= run.until_ns
        self.batches += 1
        self.start(Running(name, run.members), now_ns, end_ns)

    def start(self, batch: Running, now_ns: int, end_ns: int) -> None:
        self.running[batch.partition] = batch
        self.reservations.started(batch.partition, batch.members, end_ns)
        self.schedule(end_ns, COMPLETION, batch)


def picture(reservations: Reservations) -> list[tuple[str, int, int, int, tuple[Part, ...]]]:
    """All reservations: partition, slot and members."""
    return [
        (name, slot.start_ns, slot.end_ns, slot.rows, tuple((held.request, stage) for held, stage in slot.members))
        for name, timeline in reservations.timelines.items()
        for slot in timeline.slots
    ]


def check(reservations: Reservations) -> None:
    """Assert that slots do not overlap, are long enough, and lie between their members' sources and successors."""
    for timeline in reservations.timelines.values():
        end_ns = timeline.free_ns if timeline.slots else 0
        for slot in timeline.slots:
            lengths = timeline.lengths[slot.queue[0]]
            assert slot.start_ns >= end_ns
            assert slot.rows == sum(held.rows for held, _ in slot.members) <= len(lengths)
            assert slot.end_ns - slot.start_ns >= lengths[slot.rows - 1]
            for held, stage in slot.members:
                assert held.slots[stage] is slot
                assert held.queue(stage) == slot.queue
                assert held.ready_ns(stage) <= slot.start_ns
                assert slot.end_ns <= held.limit_ns(stage) <= held.deadline_ns
            end_ns = slot.end_ns


def reserved_cost(reservations: Reservations, request: int) -> float:
    """The cost of a request's stages as batches of their own in its slots."""
    return sum(
        cost_of(timeline, timeline.lengths[slot.queue[0]][held.rows - 1])
        for timeline in reservations.timelines.values()
        for slot in timeline.slots
        for held, _ in slot.members
        if held.request == request
    )


MODELS = ("a", "b", "c")
GRAPHS = (
    Graph(((),), (("a", ""),)),
    Graph(((), (0,)), (("a", ""), ("b", ""))),
    Graph(((), (0,), (1,)), (("a", ""), ("a", ""), ("c", ""))),
    Graph(((), (), (0, 1)), (("a", ""), ("b", ""), None)),
    Graph(((), (0,), (0,), (1, 2), (3,)), (("c", ""), ("a", ""), ("b", ""), None, ("c", ""))),
    Graph(((), (0,), (0,), (1, 2)), (("b", ""), ("a", ""), ("a", ""), ("c", "other key"))),
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, ...]:
    """Batch times with a gain from batching, without one, or arbitrary."""
    sizes = draw(st.integers(1, 6))
    if draw(st.booleans()):
        fixed, row = draw(st.integers(1, 12)), draw(st.integers(0, 4))
        return tuple(fixed + row * size for size in range(1, sizes + 1))
    return tuple(draw(st.lists(st.integers(1, 25), min_size=sizes, max_size=sizes)))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    kinds = draw(st.lists(st.sampled_from(("slow", "fast")), min_size=1, max_size=3))
    held = st.lists(st.sampled_from(MODELS), min_size=2, max_size=3, unique=True)
    partitions = tuple(
        (PartitionConfig(f"p{index}", kind, price={"slow": 1.0, "fast": 3.0}[kind]), tuple(draw(held)))
        for index, kind in enumerate(kinds)
    )
    return Machine(partitions, {(kind, model): draw(tables()) for kind in sorted(set(kinds)) for model in MODELS})


def arrivals(slo_ns: int = 150) -> st.SearchStrategy[list[Arrival]]:
    return st.lists(
        st.builds(
            Arrival,
            at_ns=st.integers(0, 120),
            graph=st.integers(0, len(GRAPHS) - 1),
            rows=st.integers(1, 3),
            slo_ns=st.integers(1, slo_ns),
            max_cost=st.none() | st.floats(1e-9, 1e-7),
            runs=st.tuples(*[st.integers(0, 4)] * 5),
        ),
        min_size=1,
        max_size=40,
    )


@given(machines(), arrivals(), st.lists(st.integers(1, 30), max_size=5))
def test_no_request_that_was_admitted_is_late(machine: Machine, requests: list[Arrival], filler: list[int]) -> None:
    executor = Executor(machine, GRAPHS, filler)
    executor.run(requests)
    assert len(executor.ended) + len(executor.refused) == len(requests)
    for request, ended_ns in executor.ended.items():
        arrival = executor.arrivals[request]
        assert ended_ns <= arrival.at_ns + arrival.slo_ns
    assert not executor.waiting
    assert picture(executor.reservations) == []


@given(machines(), arrivals())
def test_a_refusal_names_its_cause(machine: Machine, requests: list[Arrival]) -> None:
    executor = Executor(machine, GRAPHS)
    executor.run(requests)
    held = {model for _, models in machine.partitions for model in models}
    for request, refusal in executor.refused.items():
        arrival = executor.arrivals[request]
        needed = {queue[0] for queue in GRAPHS[arrival.graph].queues if queue is not None}
        if refusal.completion_ns is None or refusal.cost is None:
            too_many = any(
                all(
                    model not in models or arrival.rows > len(machine.lengths[config.kind, model])
                    for config, models in machine.partitions
                )
                for model in needed
            )
            assert not needed <= held or too_many
            continue
        late = refusal.completion_ns > arrival.at_ns + arrival.slo_ns
        assert late or (arrival.max_cost is not None and refusal.cost > arrival.max_cost)


@given(machines(), arrivals(), st.lists(st.tuples(st.integers(1, 150), st.integers(0, 2)), min_size=1, max_size=2))
def test_reservations_of_a_lost_partition_are_moved_or_evicted(
    machine: Machine, requests: list[Arrival], losses: list[tuple[int, int]]
) -> None:
    names = [config.name for config, _ in machine.partitions]
    executor = Executor(machine, GRAPHS)
    executor.run(requests, [(at_ns, names[index]) for at_ns, index in losses if index < len(names)])
    assert len(executor.ended) + len(executor.refused) + len(executor.evicted) == len(requests)
    for request, ended_ns in executor.ended.items():
        arrival = executor.arrivals[request]
        assert ended_ns <= arrival.at_ns + arrival.slo_ns
    assert picture(executor.reservations) == []


def test_overload_does_not_keep_batches_from_filling() -> None:
    """Under twice the load that can be served, almost as many requests are served as possible."""
    lengths = tuple(8_000 + 500 * rows for rows in range(1, 17))
    machine = Machine(((PartitionConfig("p", "gpu"), ("a",)),), {("gpu", "a"): lengths})
    executor = Executor(machine, GRAPHS)
    requests = 2000
    executor.run([Arrival(500 * index, 0, 1, 50_000 + 50_000 * (index % 2), None, (4,)) for index in range(requests)])
    assert len(executor.ended) + len(executor.refused) == requests
    assert len(executor.ended) >= 0.95 * 500 * requests / lengths[-1] * 16
    assert len(executor.ended) / executor.batches >= 15
