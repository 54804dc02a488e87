"""Triton's quality assurance of its dynamic batcher, replayed through the real tritonclient on a real server.

Named after the tests of L0_batcher. Unless noted, the preferred sizes are 2 and 6, 8 rows are the most, and the delay
is 1 s instead of 10 s. All cases run at the same time, each on a model of its own; requests of those in `HELD` wait
until another model leaves the only partition, and so come all before the first batch is formed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.support.server import GatewayServer, gateway_server
from tests.support.timed_models import CLIENTS, Reply, Sent, executed, replay, save_timed

pytestmark = pytest.mark.timed

STARTUP_MS = 200
AT_ONCE_MS = 600
HOLD_MS = 1000
USUAL = "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 1000000 }"
PATIENT = "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 2000000 }"
HASTY = "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 300000 }"
PROMPT = "dynamic_batching { preferred_batch_size: [ 4, 6 ] }"
NOW, LATER = True, False


class Case(NamedTuple):
    """What is sent, the batches that run, and which requests are answered at once."""

    sent: Sequence[Sent]
    executed: Mapping[int, int]
    at_once: Sequence[bool]
    config: str = USUAL
    latency_ms: Mapping[int, float] = {1: 1}
    max_batch_size: int = 8


FREE = {
    "static_batch_preferred": Case([Sent(0, 2), Sent(100, 6)], {2: 1, 6: 1}, [NOW, NOW]),
    "static_batch_lt_any_preferred": Case([Sent(0, 1)], {1: 1}, [LATER]),
    "static_batch_not_preferred": Case([Sent(0, 3)], {3: 1}, [LATER]),
    "static_batch_gt_max_preferred": Case([Sent(0, 7)], {7: 1}, [NOW]),
    "multi_batch_different_shape": Case([Sent(0, 1), Sent(50, 1, width=2)], {1: 2}, [NOW, LATER]),
    "multi_batch_not_preferred": Case([Sent(0, 1), Sent(50, 3)], {4: 1}, [LATER, LATER]),
    "multi_batch_not_preferred_different_shape": Case(
        [Sent(0, 1), Sent(50, 3), Sent(100, 1, width=2)], {4: 1, 1: 1}, [NOW, NOW, LATER]
    ),
    "multi_batch_preferred_different_shape": Case(
        [Sent(0, 1), Sent(50, 3), Sent(100, 1, width=2), Sent(150, 5, width=2)], {4: 1, 6: 1}, [NOW] * 4
    ),
    "multi_batch_gt_max_preferred": Case([Sent(0, 3), Sent(50, 7)], {3: 1, 7: 1}, [NOW, NOW]),
    "multi_batch_sum_gt_max_preferred": Case([Sent(0, 3), Sent(50, 4)], {3: 1, 4: 1}, [NOW, LATER]),
    "multi_same_output0": Case(
        [Sent(0, 1, outputs=("y0",)), Sent(50, 1, first=5, outputs=("y0",))], {2: 1}, [NOW, NOW]
    ),
    "multi_same_output1": Case(
        [Sent(0, 1, outputs=("y1",)), Sent(50, 1, first=5, outputs=("y1",))], {2: 1}, [NOW, NOW]
    ),
    "multi_different_outputs": Case(
        [Sent(0, 1, outputs=("y0",)), Sent(50, 1, first=5, outputs=("y1",))], {2: 1}, [NOW, NOW]
    ),
    "multi_different_output_order": Case(
        [Sent(0, 1, outputs=("y0", "y1")), Sent(50, 1, first=5, outputs=("y1", "y0"))], {2: 1}, [NOW, NOW]
    ),
    "max_queue_delay_only_non_default": Case(
        [Sent(10 * number) for number in range(12)],
        {12: 1},
        [LATER] * 12,
        "dynamic_batching { max_queue_delay_microseconds: 1000000 }",
        max_batch_size=16,
    ),
    "max_queue_delay_only_default": Case(
        [Sent(0), *[Sent(50)] * 11], {1: 1, 11: 1}, [NOW] * 12, "dynamic_batching { }", {1: 200, 2: 201}, 16
    ),
}
HELD = {
    "multi_batch_delayed_use_max_batch": Case([Sent(0, 3), Sent(20, 4), Sent(40, 1)], {8: 1}, [NOW] * 3, HASTY),
    "multi_batch_use_biggest_preferred": Case([Sent(0)] * 6, {6: 1}, [NOW] * 6),
    "multi_batch_use_best_preferred": Case([Sent(0), Sent(50), Sent(100)], {2: 1, 1: 1}, [NOW, NOW, LATER], PATIENT),
    "multi_batch_preserve_ordering": Case(
        [Sent(20 * number, first=number) for number in range(12)],
        {4: 3},
        [NOW] * 12,
        "dynamic_batching { preserve_ordering: true }",
        max_batch_size=4,
    ),
    "preferred_batch_only_aligned": Case([Sent(0)] * 4, {4: 1}, [NOW] * 4, PROMPT),
    "preferred_batch_only_unaligned": Case([Sent(0)] * 5, {4: 1, 1: 1}, [NOW] * 5, PROMPT),
    "preferred_batch_only_use_biggest_preferred": Case([Sent(0)] * 7, {6: 1, 1: 1}, [NOW] * 7, PROMPT),
    "preferred_batch_only_use_no_preferred_size": Case([Sent(0)] * 3, {3: 1}, [NOW] * 3, PROMPT),
}
CASES = FREE | HELD
CLIENT = {name: CLIENTS[number % len(CLIENTS)] for number, name in enumerate(CASES)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("batching")
    repository = directory / "models"
    for name, case in CASES.items():
        pairs = (("x0", "y0"), ("x1", "y1"))
        save_timed(repository, name, case.latency_ms, case.config, case.max_batch_size, pairs)
    save_timed(repository, "busy", {1: HOLD_MS}, max_batch_size=1)
    with gateway_server(repository, directory, {"partitions": 1}) as running:
        yield running


@pytest.fixture(scope="module")
def replies(server: GatewayServer) -> dict[str, list[Reply]]:
    """Those of all cases, the clients of tritonclient in turn."""
    with ThreadPoolExecutor(len(CASES)) as threads:

        def send(cases: Mapping[str, Case], after_ms: float) -> dict[str, Future[list[Reply]]]:
            futures = {}
            for name, case in cases.items():
                sent = [each._replace(model=name, at_ms=after_ms + each.at_ms) for each in case.sent]
                futures[name] = threads.submit(replay, server, CLIENT[name], sent, ("x0", "x1"))
            return futures

        found = {name: future.result() for name, future in send(FREE, STARTUP_MS).items()}
        threads.submit(replay, server, "grpc.aio", [Sent(model="busy")])
        return found | {name: future.result() for name, future in send(HELD, HOLD_MS / 4).items()}


@pytest.mark.behaviour("L0_batcher", "{name}")
@pytest.mark.parametrize(("name", "client"), CLIENT.items())
def test_batches_are_formed_as_by_triton(
    server: GatewayServer, replies: dict[str, list[Reply]], name: str, client: str
) -> None:
    case = CASES[name]
    assert executed(server, name) == case.executed
    latest_ms = AT_ONCE_MS + (HOLD_MS * 3 / 4 if name in HELD else 0)
    began_ms = HOLD_MS / 4 if name in HELD else STARTUP_MS
    for each, reply, at_once in zip(case.sent, replies[name], case.at_once, strict=True):
        assert reply.error == ""
        assert (reply.done_ms - began_ms - each.at_ms < latest_ms) == at_once, reply.done_ms
        whole = {"y0": 0, "y1": 1000}
        wanted = each.outputs or tuple(whole)
        assert reply.outputs == {
            output: [[each.first + row + whole[output]] * each.width for row in range(each.rows)] for output in wanted
        }
