"""Triton's quality assurance of its dynamic batcher, replayed through the real tritonclient on a real server.

Named after the tests of L0_batcher. Unless noted, the preferred sizes are 2 and 6, 8 rows are the most, and the delay
is 5 s instead of 10 s. All cases run at the same time, each on a model of its own. Requests go one after the other when
those before have come; those of the cases in `HELD` have all come before the only partition is free for them.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pytest

from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.held_model import HeldModel
from tests.support.models.timed_models import CLIENTS, Reply, Sent, executed, metric, metrics, replay, save_timed

pytestmark = pytest.mark.timed

DELAY_S = 5
INPUTS = ("x0", "x1")
PAIRS = (("x0", "y0"), ("x1", "y1"))
USUAL = "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 5000000 }"
HASTY = "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 300000 }"
HASTY_S = 0.3
PROMPT = "dynamic_batching { preferred_batch_size: [ 4, 6 ] }"
NOW, LATER = True, False


class Case(NamedTuple):
    """Requests sent in turns, the batches that run, and the turns that are answered before a delay can be over.

    `waiting` are how many wait when the next turn begins, where those are not all that were sent.
    """

    turns: Sequence[Sequence[Sent]]
    executed: Mapping[int, int]
    at_once: Sequence[bool]
    config: str = USUAL
    max_batch_size: int = 8
    waiting: Sequence[int] = ()


def turns(*rows: int) -> list[list[Sent]]:
    """One request each."""
    return [[Sent(rows=each)] for each in rows]


FREE = {
    "static_batch_preferred": Case(turns(2, 6), {2: 1, 6: 1}, [NOW, NOW], waiting=[0]),
    "static_batch_lt_any_preferred": Case(turns(1), {1: 1}, [LATER]),
    "static_batch_not_preferred": Case(turns(3), {3: 1}, [LATER]),
    "static_batch_gt_max_preferred": Case(turns(7), {7: 1}, [NOW]),
    "multi_batch_different_shape": Case([[Sent()], [Sent(width=2)]], {1: 2}, [NOW, LATER]),
    "multi_batch_not_preferred": Case(turns(1, 3), {4: 1}, [LATER, LATER]),
    "multi_batch_not_preferred_different_shape": Case([*turns(1, 3), [Sent(width=2)]], {4: 1, 1: 1}, [NOW, NOW, LATER]),
    "multi_batch_preferred_different_shape": Case(
        [*turns(1, 3), [Sent(width=2)], [Sent(rows=5, width=2)]], {4: 1, 6: 1}, [NOW] * 4, waiting=[1, 2, 1]
    ),
    "multi_batch_gt_max_preferred": Case(turns(3, 7), {3: 1, 7: 1}, [NOW, NOW]),
    "multi_batch_sum_gt_max_preferred": Case(turns(3, 4), {3: 1, 4: 1}, [NOW, LATER]),
    "multi_same_output0": Case([[Sent(outputs=("y0",))], [Sent(first=5, outputs=("y0",))]], {2: 1}, [NOW, NOW]),
    "multi_same_output1": Case([[Sent(outputs=("y1",))], [Sent(first=5, outputs=("y1",))]], {2: 1}, [NOW, NOW]),
    "multi_different_outputs": Case([[Sent(outputs=("y0",))], [Sent(first=5, outputs=("y1",))]], {2: 1}, [NOW, NOW]),
    "multi_different_output_order": Case(
        [[Sent(outputs=("y0", "y1"))], [Sent(first=5, outputs=("y1", "y0"))]], {2: 1}, [NOW, NOW]
    ),
    "max_queue_delay_only_non_default": Case(
        [[Sent()] * 12], {12: 1}, [LATER], "dynamic_batching { max_queue_delay_microseconds: 5000000 }", 16
    ),
}
HELD = {
    "multi_batch_delayed_use_max_batch": Case(turns(3, 4, 1), {8: 1}, [NOW] * 3, HASTY),
    "multi_batch_use_biggest_preferred": Case([[Sent()] * 6], {6: 1}, [NOW]),
    "multi_batch_use_best_preferred": Case(turns(1, 1, 1), {2: 1, 1: 1}, [NOW, NOW, LATER]),
    "multi_batch_preserve_ordering": Case(
        [[Sent(first=number) for number in range(12)]],
        {4: 3},
        [NOW],
        "dynamic_batching { preserve_ordering: true }",
        max_batch_size=4,
    ),
    "preferred_batch_only_aligned": Case([[Sent()] * 4], {4: 1}, [NOW], PROMPT),
    "preferred_batch_only_unaligned": Case([[Sent()] * 5], {4: 1, 1: 1}, [NOW], PROMPT),
    "preferred_batch_only_use_biggest_preferred": Case([[Sent()] * 7], {6: 1, 1: 1}, [NOW], PROMPT),
    "preferred_batch_only_use_no_preferred_size": Case([[Sent()] * 3], {3: 1}, [NOW], PROMPT),
}
CASES = FREE | HELD
CLIENT = {name: CLIENTS[number % len(CLIENTS)] for number, name in enumerate(CASES)}


class Served(NamedTuple):
    """A server with the models of all cases, and one without a delay that keeps its partition."""

    server: GatewayServer
    held: HeldModel


class Answered(NamedTuple):
    """The outcome of a turn."""

    replies: list[Reply]
    at_once: bool


class Senders:
    """The requests of cases, each turn of all of them after the one before; the clients of tritonclient in turn."""

    def __init__(self, server: GatewayServer, threads: Executor) -> None:
        self.answers: dict[str, list[Future[Answered]]] = {name: [] for name in CASES}
        self._server, self._threads = server, threads

    def send(self, cases: Mapping[str, Case]) -> None:
        began = time.monotonic()
        for turn in range(max(len(case.turns) for case in cases.values())):
            self._wait_for_those_before(cases, turn)
            for name, case in cases.items():
                for sent in case.turns[turn : turn + 1]:
                    self.answers[name].append(self._threads.submit(self._ask, name, sent, began))

    def _wait_for_those_before(self, cases: Mapping[str, Case], turn: int) -> None:
        """All that comes before a turn of a case waits, or is answered, as it is to be."""
        expected = {}
        for name, case in cases.items():
            if 0 < turn < len(case.turns):
                sent = sum(map(len, case.turns[:turn]))
                waiting = case.waiting[turn - 1] if case.waiting else sent
                expected[name] = (waiting, sent - waiting)
        until(lambda: counts(self._server, expected) == expected)

    def _ask(self, name: str, sent: Sequence[Sent], began: float) -> Answered:
        replies = replay(self._server, CLIENT[name], [each._replace(model=name) for each in sent], INPUTS)
        return Answered(replies, time.monotonic() - began < DELAY_S)


def counts(server: GatewayServer, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """The requests that wait, and those that have been answered, by model."""
    found = metrics(server)

    def count(metric: str, name: str) -> float:
        return found.get(f'nv_inference_{metric}{{model="{name}",version="1"}}', 0)

    return {name: (count("pending_request_count", name), count("request_success", name)) for name in names}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("batching")
    repository = directory / "models"
    for name, case in CASES.items():
        save_timed(repository, name, {1: 1}, case.config, case.max_batch_size, PAIRS)
    held = HeldModel(repository, "held", "dynamic_batching { }", 16, PAIRS)
    with gateway_server(repository, directory, {"partitions": 1, "default_slo_ms": 600_000}) as running:
        for client in CLIENTS:  # the first request of a client takes it longer
            replay(running, client, [Sent(model="held")], INPUTS)
        yield Served(running, held)


@pytest.fixture(scope="module")
def answers(served: Served) -> dict[str, list[Answered]]:
    """Those of all cases, by turns."""
    server, held = served
    with ThreadPoolExecutor(sum(len(case.turns) for case in CASES.values())) as threads:
        senders = Senders(server, threads)
        with held.holding(partial(replay, server, "grpc.aio", [Sent(model="held")], INPUTS)):
            senders.send(HELD)
            waiting = {name: (sum(map(len, case.turns)), 0) for name, case in HELD.items()}
            until(lambda: counts(server, HELD) == waiting)
            time.sleep(HASTY_S)
        senders.send(FREE)
        return {name: [each.result() for each in turns] for name, turns in senders.answers.items()}


def echoed(each: Sent) -> dict[str, list[list[float]]]:
    whole = {"y0": 0, "y1": 1000}
    wanted = each.outputs or tuple(whole)
    return {output: [[each.first + row + whole[output]] * each.width for row in range(each.rows)] for output in wanted}


@pytest.mark.behaviour("L0_batcher", "{name}")
@pytest.mark.parametrize(("name", "client"), CLIENT.items())
def test_batches_are_formed_as_by_triton(
    served: Served, answers: dict[str, list[Answered]], name: str, client: str
) -> None:
    case = CASES[name]
    assert executed(served.server, name) == case.executed
    assert [turn.at_once for turn in answers[name]] == case.at_once
    for sent, turn in zip(case.turns, answers[name], strict=True):
        assert [reply.error for reply in turn.replies] == [""] * len(sent)
        assert [reply.outputs for reply in turn.replies] == [echoed(each) for each in sent]


@pytest.mark.behaviour("L0_batcher", "max_queue_delay_only_default")
@pytest.mark.parametrize("client", ["grpc.aio"])
def test_without_a_delay_a_batch_is_what_came_while_the_one_before_ran(served: Served, client: str) -> None:
    server, held = served
    before = executed(server, "held")
    with ThreadPoolExecutor(1) as thread:
        with held.holding(partial(replay, server, client, [Sent(model="held")], INPUTS)) as first:
            sent = [Sent(model="held", first=number) for number in range(11)]
            others = thread.submit(replay, server, client, sent, INPUTS)
            until(lambda: metric(server, "pending_request_count", "held") == 11)
        replies = [*first.result(), *others.result()]
    assert [reply.error for reply in replies] == [""] * 12
    assert [reply.outputs for reply in replies] == [echoed(each) for each in (Sent(), *sent)]
    assert executed(server, "held") == {1: before.get(1, 0) + 1, 11: 1}
