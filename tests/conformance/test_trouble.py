"""Clients that give up, time out or overload a model, through the real tritonclient: nothing hangs, nothing is left."""

import json
import queue
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.units import NS_PER_S
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.held_model import HeldModel
from tests.support.models.timed_models import Sent, executed, metric, metrics, replay, save_timed

pytestmark = pytest.mark.timed

TIMEOUT_S = 60
"""Wait for the work of other clients."""


class Served(NamedTuple):
    """A server, and the model that keeps its partition."""

    server: GatewayServer
    model: HeldModel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("trouble")
    repository = directory / "models"
    model = HeldModel(repository, "busy", promised_ns=2 * NS_PER_S)
    save_timed(repository, "behind", {1: 1})
    save_timed(repository, "m", {1: 1}, "dynamic_batching { }")
    save_timed(repository, "short", {1: 1}, "dynamic_batching { default_queue_policy { max_queue_size: 2 } }")
    save_timed(repository, "patient", {1: 1}, "dynamic_batching { max_queue_delay_microseconds: 60000000 }", 4)
    with gateway_server(repository, directory, {"partitions": 1, "default_slo_ms": 600_000}) as running:
        replay(running, "grpc", [Sent()])
        yield Served(running, model)


@pytest.fixture
def server(served: Served) -> GatewayServer:
    return served.server


@pytest.fixture
def busy(served: Served) -> Iterator[Callable[[], None]]:
    """The only partition is taken, and one request waits for it, until this is called or the test is over."""
    server, model = served
    with ThreadPoolExecutor(1) as thread, ExitStack() as held:
        first = held.enter_context(model.holding(partial(replay, server, "grpc.aio", [Sent(model="busy")])))
        behind = thread.submit(replay, server, "grpc.aio", [Sent(model="behind")])
        until(lambda: metric(server, "pending_request_count", "behind") == 1)

        def end() -> None:
            held.close()
            assert [reply.error for reply in (*first.result(), *behind.result())] == ["", ""]

        yield end
        end()


def given(library: Any) -> list[Any]:
    tensor = library.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return [tensor]


def failures(server: GatewayServer, model: str) -> float:
    """The number of requests that have failed, for any reason."""
    start = f'nv_inference_request_failure{{model="{model}",'
    return sum(number for name, number in metrics(server).items() if name.startswith(start))


@pytest.mark.behaviour(
    "L0_request_cancellation", "a queued request that is cancelled is CANCELLED, others finish", through="grpc"
)
def test_a_queued_request_is_cancelled(server: GatewayServer, busy: Callable[[], None]) -> None:
    ended: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:

        def done(result: Any, error: Any) -> None:
            ended.put((result, error))

        first, _ = (client.async_infer("m", given(tritonclient.grpc), done) for _ in range(2))
        until(lambda: metric(server, "pending_request_count", "m") == 2)
        first.cancel()
        _, error = ended.get(timeout=TIMEOUT_S)
        assert "CANCELLED" in str(error.status())  # says the client, before the server knows
        until(lambda: metric(server, "pending_request_count", "m") == 1)
        busy()
        result, error = ended.get(timeout=TIMEOUT_S)
        assert (result.as_numpy("y").tolist(), error) == ([[1]], None)
    assert metric(server, "request_failure", "m", reason="CANCELED") >= 1


@pytest.mark.behaviour("L0_request_cancellation", "a stream that is cancelled ends with one CANCELLED", through="grpc")
def test_a_stream_is_cancelled(server: GatewayServer, busy: Callable[[], None]) -> None:
    ended: queue.Queue[Any] = queue.Queue()
    before = metric(server, "request_failure", "m", reason="CANCELED")
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: ended.put(error))
        for number in range(3):
            client.async_stream_infer("m", given(tritonclient.grpc), request_id=str(number))
        until(lambda: metric(server, "pending_request_count", "m") == 3)
        client.stop_stream(cancel_requests=True)
        error = ended.get(timeout=TIMEOUT_S)
        assert "CANCELLED" in str(error.status())
        assert ended.empty()
    until(lambda: metric(server, "request_failure", "m", reason="CANCELED") == before + 3)


@pytest.mark.behaviour(
    "L0_request_cancellation", "a client that disconnects cancels its request", triton="over HTTP it still runs"
)
def test_a_client_that_disconnects_cancels(server: GatewayServer, busy: Callable[[], None]) -> None:
    before = metric(server, "request_failure", "m", reason="CANCELED")
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
        connection.sendall(head + body)
        until(lambda: metric(server, "pending_request_count", "m") == 1)
    until(lambda: metric(server, "request_failure", "m", reason="CANCELED") == before + 1)
    assert metric(server, "pending_request_count", "m") == 0


@pytest.mark.behaviour("L0_client_timeout", "a request ends when the client's timeout is over, and is not run")
@pytest.mark.parametrize("client", ["http", "grpc"])
def test_a_client_times_out(server: GatewayServer, busy: Callable[[], None], client: str) -> None:
    ran, failed = executed(server, "m").get(1, 0), failures(server, "m")
    if client == "grpc":
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as connection:
            assert connection.is_server_live()  # the timeout is not that of the connection
            with pytest.raises(InferenceServerException) as caught:
                # The partition should be free before; a shorter timeout would be refused at once.
                connection.infer("m", given(tritonclient.grpc), client_timeout=4)
            assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    else:
        connection = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=1)
        with connection, pytest.raises(TimeoutError):
            connection.infer("m", given(tritonclient.http))
    until(lambda: failures(server, "m") == failed + 1)
    assert metric(server, "pending_request_count", "m") == 0
    busy()
    assert executed(server, "m").get(1, 0) == ran


CALLS: dict[str, Callable[[Any], Any]] = {
    "is_server_live": lambda client: client.is_server_live(client_timeout=TIMEOUT_S),
    "is_server_ready": lambda client: client.is_server_ready(client_timeout=TIMEOUT_S),
    "is_model_ready": lambda client: client.is_model_ready("m", client_timeout=TIMEOUT_S),
    "get_server_metadata": lambda client: client.get_server_metadata(client_timeout=TIMEOUT_S),
    "get_model_metadata": lambda client: client.get_model_metadata("m", client_timeout=TIMEOUT_S),
    "get_model_config": lambda client: client.get_model_config("m", client_timeout=TIMEOUT_S),
    "get_model_repository_index": lambda client: client.get_model_repository_index(client_timeout=TIMEOUT_S),
    "get_inference_statistics": lambda client: client.get_inference_statistics("m", client_timeout=TIMEOUT_S),
    "get_trace_settings": lambda client: client.get_trace_settings(client_timeout=TIMEOUT_S),
    "get_log_settings": lambda client: client.get_log_settings(client_timeout=TIMEOUT_S),
}


@pytest.mark.behaviour("L0_client_timeout", "all other calls answer while all partitions are busy", through="grpc")
def test_calls_answer_in_time(server: GatewayServer, busy: Callable[[], None]) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        assert [name for name, call in CALLS.items() if not call(client)] == []
    assert metric(server, "pending_request_count", "behind") == 1


@pytest.mark.behaviour("L0_metrics", "nv_inference_pending_request_count counts what waits, and falls to 0")
@pytest.mark.parametrize("client", ["http.aio", "grpc.aio"])
def test_the_pending_gauge(server: GatewayServer, client: str) -> None:
    assert metric(server, "pending_request_count", "patient") == 0
    with ThreadPoolExecutor(4) as threads:
        answers = []
        for waiting in (1, 2, 3, 0):
            answers.append(threads.submit(replay, server, client, [Sent(model="patient")]))
            until(lambda: metric(server, "pending_request_count", "patient") == waiting)  # noqa: B023
        assert [reply.error for answer in answers for reply in answer.result()] == [""] * 4


@pytest.mark.behaviour("L0_metrics", "a full queue counts as nv_inference_request_failure with reason REJECTED")
@pytest.mark.parametrize("client", ["http", "grpc"])
def test_rejections_are_counted(server: GatewayServer, busy: Callable[[], None], client: str) -> None:
    before = metric(server, "request_failure", "short", reason="REJECTED")
    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(replay, server, client, [Sent(model="short")] * 5)
        until(lambda: metric(server, "request_failure", "short", reason="REJECTED") == before + 3)
        busy()
        refused = [reply.error for reply in answers.result() if reply.error]
    assert len(refused) == 3
    assert all("Exceeds maximum queue size" in error for error in refused)
    assert metric(server, "request_failure", "short", reason="REJECTED") == before + 3


@pytest.mark.behaviour("L0_metrics", "the names and labels of Triton's counters", through="socket")
def test_the_names_of_metrics(server: GatewayServer) -> None:
    replay(server, "grpc", [Sent()])
    names = {re.split(r"[{ ]", name)[0] for name in metrics(server)}
    assert names >= {
        f"nv_inference_{name}"
        for name in (
            *("request_success", "request_failure", "count", "exec_count", "pending_request_count"),
            *("request_duration_us", "queue_duration_us", "compute_input_duration_us", "compute_infer_duration_us"),
            "compute_output_duration_us",
        )
    }


@pytest.mark.behaviour("L0_grpc_state_cleanup", "after all of this nothing is pending, and requests are answered")
@pytest.mark.parametrize("client", ["http", "grpc", "http.aio", "grpc.aio"])
def test_nothing_is_left(server: GatewayServer, client: str) -> None:
    def pending() -> set[float]:
        return {number for name, number in metrics(server).items() if "pending" in name}

    until(lambda: pending() == {0})
    (reply,) = replay(server, client, [Sent()])
    assert reply.outputs == {"y": [[0]]}
