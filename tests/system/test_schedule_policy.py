"""Priorities, timeouts and bounds of queues of `dynamic_batching`, through the real tritonclient on a real server.

Named after the tests of L0_model_queue, with times of a tenth. `busy` and `longer` keep the only partition for as long
as a test needs requests to wait. Whatever has to come after something else does so more than 100 ms later: as long as
any of all that take part may be late. What ran before what is asked of the server.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import CLIENTS, Reply, Sent, executed, replay, save_timed

pytestmark = pytest.mark.timed

BUSY_MS, LONGER_MS = 1000, 1500
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
        default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 300000 }""",
    "override": """preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 10000000
        default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 700000 }""",
    "plain": "preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 10000000",
    "prompt": "default_queue_policy { default_timeout_microseconds: 200000 }",
    "two_levels": "preferred_batch_size: 4 " + LEVELS.format(levels=2),
    "most_levels": "preferred_batch_size: 4 " + LEVELS.format(levels=2**64 - 1),
    "policies": """preferred_batch_size: 4 priority_levels: 2 default_priority_level: 2
        priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 700000 } }
        priority_queue_policy { key: 2 value { default_timeout_microseconds: 600000 max_queue_size: 2 } }""",
}
SLOW = {"full": {1: 1, 4: 1, 8: 500}}
STEPS = {f"{name}_ensemble": (name, "quick") for name in ("full", "delay", "reject", "plain")}
STEPS["chain"] = ("step", "plain")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("policy")
    repository = directory / "models"
    for name, batching in BATCHING.items():
        save_timed(repository, name, SLOW.get(name, {1: 1}), f"dynamic_batching {{ {batching} }}")
    save_timed(repository, "quick", {1: 1})
    save_timed(repository, "step", {1: 400})
    save_timed(repository, "busy", {1: BUSY_MS}, max_batch_size=1)
    save_timed(repository, "longer", {1: LONGER_MS}, max_batch_size=1)
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


def batches(server: GatewayServer, sent: Sequence[Sent]) -> list[list[int]]:
    """The requests that ran, by the batches that they were in; these in the order in which they were closed."""
    found: dict[int, list[int]] = {}
    for number, each in enumerate(sent):
        for stage in json.loads(server.request("GET", f"/v2/sluice/requests/{each.id}")[2])["stages"]:
            found.setdefault(stage["batch"], []).append(number)
    return [found[batch] for batch in sorted(found)]


def answered(replies: list[Reply]) -> bool:
    return all(reply.error == "" for reply in replies)


@pytest.mark.behaviour(
    "L0_model_queue", "max_queue_size, model{suffix}: the 9th and 10th that wait are refused at once"
)
@wrapped
def test_max_queue_size(server: GatewayServer, client: str, suffix: str) -> None:
    sent = [Sent(0, 8, f"full{suffix}"), *[Sent(250, 1, f"full{suffix}")] * 10]
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
    sent = [Sent(0, 1, f"delay{suffix}"), *[Sent(400, 2, f"delay{suffix}")] * 2]
    first, *others = replay(server, client, sent)
    assert answered([first, *others])
    assert max(reply.done_ms for reply in others) < 800
    assert 990 < first.done_ms < 1500


@pytest.mark.behaviour("L0_model_queue", "policy_reject, model{suffix}: what waited too long is refused")
@wrapped
def test_policy_reject(server: GatewayServer, client: str, suffix: str) -> None:
    sent = [Sent(0, 1, f"reject{suffix}"), *[Sent(600, 2, f"reject{suffix}")] * 2]
    first, *others = replay(server, client, sent)
    assert first.error == refused(client, "Request timeout expired")
    assert 299 < first.done_ms < 600
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
    (reply,) = replay(server, client, [Sent(0, 1, "chain", timeout_ms=700)])
    assert reply.error == refused(client, "Request timeout expired")
    assert 699 < reply.done_ms < 1050  # The second step begins after 400 ms.


@pytest.mark.behaviour("L0_model_queue", "a timeout that cannot be met is refused at once", triton="it runs")
def test_a_timeout_that_cannot_be_met_is_refused_at_once(server: GatewayServer, client: str) -> None:
    (reply,) = replay(server, client, [Sent(0, 1, "busy", timeout_ms=20)])
    assert reply.error.startswith(refused(client, "the request cannot be answered by its deadline: predicted"))
    assert reply.done_ms < 200


@pytest.mark.behaviour("L0_batcher", "default_queue_policy_timeout_prompt_response: expired while the instance is busy")
def test_what_expires_is_reported_while_the_instance_is_busy(server: GatewayServer, client: str) -> None:
    busy, expired = replay(server, client, [Sent(0, 1, "busy"), Sent(250, 1, "prompt")])
    assert busy.error == ""
    assert expired.error == refused(client, "Request timeout expired")
    assert 449 < expired.done_ms < busy.done_ms - 50


@pytest.mark.behaviour("L0_model_queue", "{name}: a late request of level 1 joins the first batch")
@pytest.mark.parametrize("name", ["two_levels", "most_levels"])
def test_priority_levels(server: GatewayServer, client: str, name: str) -> None:
    before = executed(server, name)
    sent = [Sent(200 + 150 * number, 2, name, id=f"{name}-{client}-{number}") for number in range(4)]
    sent[3] = sent[3]._replace(priority=1)
    _, *replies = replay(server, client, [Sent(0, 1, "busy"), *sent])
    assert answered(replies)
    assert batches(server, sent) == [[0, 3], [1, 2]]
    assert executed(server, name).get(4, 0) - before.get(4, 0) == 2


@pytest.mark.behaviour("L0_model_queue", "a priority that the model has not is its default one")
def test_an_unknown_priority_is_the_default_one(server: GatewayServer, client: str) -> None:
    sent = [
        Sent(200 + 150 * number, 4, "two_levels", each, id=f"usual-{client}-{number}")
        for number, each in enumerate((0, 3, 2, 1))
    ]
    _, *replies = replay(server, client, [Sent(0, 1, "busy"), *sent])
    assert answered(replies)
    assert batches(server, sent) == [[3], [0], [1], [2]]


@pytest.mark.behaviour("L0_model_queue", "priority_with_policy: level 1 delays, level 2 rejects and is bounded")
def test_priority_with_policy(server: GatewayServer, client: str) -> None:
    # Of level 1 until the only partition is free: the first waits for too long, the second does not; so of level 2.
    times = ((200, 1), (350, 2), (1000, 1), (1100, 2), (1225, 0), (1350, 0))
    sent = [
        Sent(at_ms, 4, "policies", priority, id=f"policies-{client}-{number}")
        for number, (at_ms, priority) in enumerate(times)
    ]
    _, *replies = replay(server, client, [Sent(0, 1, "longer"), *sent])
    expired, full = replies[1], replies[5]
    assert expired.error == refused(client, "Request timeout expired")
    assert full.error.startswith(refused(client, "Exceeds maximum queue size: 2 requests wait at level 2"))
    assert answered([replies[number] for number in (0, 2, 3, 4)])
    assert batches(server, sent) == [[2], [0], [3], [4]]


@pytest.mark.behaviour("L0_batcher", "preserve_ordering: a quicker batch is answered after the one before it")
@pytest.mark.parametrize("client", ["http.aio", "grpc"])
def test_preserve_ordering(tmp_path: Path, client: str) -> None:
    repository = tmp_path / "models"
    latency_ms = {1: 20, 3: 20, 4: 400}
    save_timed(repository, "ordered", latency_ms, "dynamic_batching { preserve_ordering: true }", 4)
    save_timed(repository, "free", latency_ms, "dynamic_batching { }", 4)
    with gateway_server(repository, tmp_path, {"partitions": 2}) as server:
        # Before 500 ms the first batch cannot have been done.
        replies = replay(server, client, [Sent(100, 4, "free"), Sent(300, 1, "free")])
        assert answered(replies)
        assert replies[1].done_ms < 500
        replies = replay(server, client, [Sent(100, 4, "ordered"), Sent(300, 1, "ordered")])
        assert answered(replies)
        assert replies[1].done_ms >= 500
