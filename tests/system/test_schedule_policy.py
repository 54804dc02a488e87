"""Priorities, timeouts and bounds of queues of `dynamic_batching`, through the real tritonclient on a real server.

Named after the tests of L0_model_queue, with times of a tenth. `busy` keeps the only partition for as long as a test
needs requests to wait.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import GatewayServer, gateway_server
from tests.support.timed_models import CLIENTS, Reply, Sent, executed, replay, save_timed

pytestmark = pytest.mark.timed

BUSY_MS = 600
LEVELS = "priority_levels: {levels} default_priority_level: {levels}"
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling { step [
  { model_name: "%s" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
  { model_name: "%s" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
] }
"""
BATCHING = {
    "full": "preferred_batch_size: 8 max_queue_delay_microseconds: 10000000 default_queue_policy { max_queue_size: 8 }",
    "delay": """preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 1000000
        default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 100000 }""",
    "reject": """preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 10000000
        default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 100000 }""",
    "override": """preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 10000000
        default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 700000 }""",
    "plain": "preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 10000000",
    "prompt": "default_queue_policy { default_timeout_microseconds: 200000 }",
    "two_levels": "preferred_batch_size: 4 " + LEVELS.format(levels=2),
    "most_levels": "preferred_batch_size: 4 " + LEVELS.format(levels=2**64 - 1),
    "policies": """preferred_batch_size: 4 priority_levels: 2 default_priority_level: 2
        priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 350000 } }
        priority_queue_policy { key: 2 value { default_timeout_microseconds: 150000 max_queue_size: 2 } }""",
}
SLOW = {"full": 300}
STEPS = {f"{name}_ensemble": (name, "quick") for name in ("full", "delay", "reject", "plain")}
STEPS["chain"] = ("step", "plain")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("policy")
    repository = directory / "models"
    for name, batching in BATCHING.items():
        save_timed(repository, name, {1: SLOW.get(name, 1)}, f"dynamic_batching {{ {batching} }}")
    save_timed(repository, "quick", {1: 1})
    save_timed(repository, "step", {1: 150})
    save_timed(repository, "busy", {1: BUSY_MS}, max_batch_size=1)
    for name, steps in STEPS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(ENSEMBLE % steps)
    with gateway_server(repository, directory, {"partitions": 1}) as running:
        for each in CLIENTS:  # the first request of a client takes it longer
            replay(running, each, [Sent(0, 1, "quick")])
        yield running


@pytest.fixture(params=["http", "grpc.aio"])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


wrapped = pytest.mark.parametrize(
    ("client", "suffix"), [("http.aio", ""), ("grpc", ""), ("http", "_ensemble"), ("grpc.aio", "_ensemble")]
)
"""A model by itself, and as the first step of an ensemble."""


def refused(client: str, message: str) -> str:
    return f"503 {message}" if client.startswith("http") else f"StatusCode.UNAVAILABLE {message}"


def order(replies: list[Reply]) -> list[int]:
    """The requests by when they were answered."""
    return sorted(range(len(replies)), key=lambda number: replies[number].done_ms)


def answered(replies: list[Reply]) -> bool:
    return all(reply.error == "" for reply in replies)


@pytest.mark.behaviour(
    "L0_model_queue", "max_queue_size, model{suffix}: the 9th and 10th that wait are refused at once"
)
@wrapped
def test_max_queue_size(server: GatewayServer, client: str, suffix: str) -> None:
    sent = [Sent(0, 8, f"full{suffix}"), *[Sent(150, 1, f"full{suffix}")] * 10]
    first, *others = replay(server, client, sent)
    errors = [reply for reply in others if reply.error]
    assert first.error == ""
    assert len(errors) == 2
    for reply in errors:
        assert reply.error.startswith(refused(client, "Exceeds maximum queue size"))
        assert reply.done_ms < first.done_ms


@pytest.mark.behaviour("L0_model_queue", "policy_delay, model{suffix}: what waited too long goes last")
@wrapped
def test_policy_delay(server: GatewayServer, client: str, suffix: str) -> None:
    sent = [Sent(0, 1, f"delay{suffix}"), *[Sent(200, 2, f"delay{suffix}")] * 2]
    first, *others = replay(server, client, sent)
    assert answered([first, *others])
    assert max(reply.done_ms for reply in others) < 600
    assert 990 < first.done_ms < 1500


@pytest.mark.behaviour("L0_model_queue", "policy_reject, model{suffix}: what waited too long is refused")
@wrapped
def test_policy_reject(server: GatewayServer, client: str, suffix: str) -> None:
    sent = [Sent(0, 1, f"reject{suffix}"), *[Sent(200, 2, f"reject{suffix}")] * 2]
    first, *others = replay(server, client, sent)
    assert first.error == refused(client, "Request timeout expired")
    assert 99 < first.done_ms < 200
    assert answered(others)


@pytest.mark.behaviour("L0_model_queue", "timeout_override: {timeout_ms} ms where 700 ms is the default")
@pytest.mark.parametrize(("timeout_ms", "expired_ms"), [(100, 100), (10_000, 700), (0, 700)])
def test_timeout_override(server: GatewayServer, client: str, timeout_ms: int, expired_ms: int) -> None:
    (reply,) = replay(server, client, [Sent(0, 1, "override", timeout_ms=timeout_ms)])
    assert reply.error == refused(client, "Request timeout expired")
    assert expired_ms - 1 < reply.done_ms < expired_ms + 400


@pytest.mark.behaviour(
    "L0_model_queue", "a timeout of a request counts without a default one, model{suffix}", triton="ignored"
)
@wrapped
def test_a_timeout_counts_without_a_default(server: GatewayServer, client: str, suffix: str) -> None:
    (reply,) = replay(server, client, [Sent(0, 1, f"plain{suffix}", timeout_ms=150)])
    assert reply.error == refused(client, "Request timeout expired")
    assert 149 < reply.done_ms < 450


@pytest.mark.behaviour(
    "L0_model_queue", "the steps of an ensemble get what is left of a timeout", triton="each gets the whole"
)
def test_the_steps_of_an_ensemble_share_a_timeout(server: GatewayServer, client: str) -> None:
    (reply,) = replay(server, client, [Sent(0, 1, "chain", timeout_ms=400)])
    assert reply.error == refused(client, "Request timeout expired")
    assert 399 < reply.done_ms < 540  # The second step begins after 150 ms.


@pytest.mark.behaviour("L0_model_queue", "a timeout that cannot be met is refused at once", triton="it runs")
def test_a_timeout_that_cannot_be_met_is_refused_at_once(server: GatewayServer, client: str) -> None:
    (reply,) = replay(server, client, [Sent(0, 1, "busy", timeout_ms=20)])
    assert reply.error.startswith(refused(client, "the request cannot be answered by its deadline: predicted"))
    assert reply.done_ms < 200


@pytest.mark.behaviour("L0_batcher", "default_queue_policy_timeout_prompt_response: expired while the instance is busy")
def test_what_expires_is_told_while_the_instance_is_busy(server: GatewayServer, client: str) -> None:
    busy, expired = replay(server, client, [Sent(0, 1, "busy"), Sent(100, 1, "prompt")])
    assert busy.error == ""
    assert expired.error == refused(client, "Request timeout expired")
    assert 299 < expired.done_ms < busy.done_ms - 50


@pytest.mark.behaviour("L0_model_queue", "{name}: a late request of level 1 joins the first batch")
@pytest.mark.parametrize("name", ["two_levels", "most_levels"])
def test_priority_levels(server: GatewayServer, client: str, name: str) -> None:
    before = executed(server, name)
    sent = [*[Sent(50 + 50 * number, 2, name) for number in range(3)], Sent(250, 2, name, priority=1)]
    _, *replies = replay(server, client, [Sent(0, 1, "busy"), *sent])
    assert answered(replies)
    assert set(order(replies)[:2]) == {0, 3}
    assert executed(server, name).get(4, 0) - before.get(4, 0) == 2


@pytest.mark.behaviour("L0_model_queue", "a priority that the model has not is its default one")
def test_a_priority_that_there_is_not_is_the_usual_one(server: GatewayServer, client: str) -> None:
    sent = [Sent(50 + 50 * number, 4, "two_levels", priority=each) for number, each in enumerate((0, 3, 2, 1))]
    _, *replies = replay(server, client, [Sent(0, 1, "busy"), *sent])
    assert answered(replies)
    assert order(replies) == [3, 0, 1, 2]


@pytest.mark.behaviour("L0_model_queue", "priority_with_policy: level 1 delays, level 2 rejects and is bounded")
def test_priority_with_policy(server: GatewayServer, client: str) -> None:
    sent = [
        Sent(50, 4, "policies", priority=1),
        Sent(100, 4, "policies", priority=2),
        Sent(350, 4, "policies", priority=1),
        Sent(500, 4, "policies", priority=2),
        Sent(520, 4, "policies"),
        Sent(540, 4, "policies"),
    ]
    _, *replies = replay(server, client, [Sent(0, 1, "busy"), *sent])
    expired, full = replies[1], replies[5]
    assert expired.error == refused(client, "Request timeout expired")
    assert full.error.startswith(refused(client, "Exceeds maximum queue size: 2 requests wait at level 2"))
    assert answered([replies[number] for number in (0, 2, 3, 4)])
    assert [number for number in order(replies) if number not in (1, 5)] == [2, 0, 3, 4]


@pytest.mark.behaviour("L0_batcher", "preserve_ordering: a quicker batch is answered after the one before it")
@pytest.mark.parametrize("client", ["http.aio", "grpc"])
def test_preserve_ordering(tmp_path: Path, client: str) -> None:
    repository = tmp_path / "models"
    latency_ms = {1: 20, 3: 20, 4: 400}
    save_timed(repository, "ordered", latency_ms, "dynamic_batching { preserve_ordering: true }", 4)
    save_timed(repository, "free", latency_ms, "dynamic_batching { }", 4)
    with gateway_server(repository, tmp_path, {"partitions": 2}) as server:
        slow, quick = replay(server, client, [Sent(100, 4, "free"), Sent(200, 1, "free")])
        assert answered([slow, quick])
        assert quick.done_ms < slow.done_ms - 100
        slow, quick = replay(server, client, [Sent(100, 4, "ordered"), Sent(200, 1, "ordered")])
        assert answered([slow, quick])
        assert quick.done_ms > slow.done_ms - 20
