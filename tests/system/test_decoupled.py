"""Decoupled models over streams of gRPC, with Triton's client: any number of responses to a request."""

import http.client
import json
import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.messages import RESPONSE_WINDOW
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.decoupled_models import save_decoupled_models
from tests.support.models.onnx_models import save_identity


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "front_ends"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("decoupled")
    repository = directory / "models"
    save_decoupled_models(repository)
    save_identity(repository / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    config = {"partitions": 1, "front_ends": request.param, "default_slo_ms": 60_000}
    with gateway_server(repository, directory, config) as running:
        yield running


class Reply(NamedTuple):
    """The arguments of the client's callback."""

    result: Any
    error: InferenceServerException | None

    @property
    def is_final(self) -> bool | None:
        """The mark of the last response; None for an error, of which the client passes on the text alone."""
        if self.error:
            return None
        marked: bool = self.result.get_response().parameters["triton_final_response"].bool_param
        return marked

    def value(self, name: str) -> Any:
        """The one value of an output; None if the response has none."""
        array = None if self.error else self.result.as_numpy(name)
        return None if array is None else array.item()

    @property
    def said(self) -> str | None:
        """The error, the text of a `scripted` model, or None for an empty response."""
        text = self.value("TEXT")
        return str(self.error) if self.error else text and text.decode()


class Stream:
    """An open stream of requests."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._replies: queue.Queue[Reply] = queue.Queue()
        client.start_stream(lambda result, error: self._replies.put(Reply(result, error)))

    def ask(self, model: str, id: str = "", *, marks_end: bool = True, **inputs: Any) -> None:
        given = []
        for name, array in inputs.items():
            datatype = {"i": "INT32", "u": "UINT32", "O": "BYTES", "f": "FP32"}[array.dtype.kind]
            tensor = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            given.append(tensor)
        self.client.async_stream_infer(model, given, request_id=id, enable_empty_final_response=marks_end)

    def prompt(self, text: str, id: str = "") -> None:
        self.ask("scripted", id, PROMPT=np.array([text.encode()], np.object_))

    def next(self) -> Reply:
        return self._replies.get(timeout=60)

    def to_end(self) -> list[Reply]:
        """The replies to a request up to the final one, or the error that ends it."""
        replies = [self.next()]
        while not replies[-1].is_final and not (replies[-1].error and "the model failed" in str(replies[-1].error)):
            replies.append(self.next())
        return replies

    def has_more(self) -> bool:
        """True if a reply follows before that to a request that is asked now."""
        self.ask("square_int32", "last", IN=np.array([1], np.int32))
        return bool(self.next().value("OUT") != 1)


@contextmanager
def stream(server: GatewayServer) -> Iterator[Stream]:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        yield Stream(client)


def repeat(values: list[int], delay: int = 1, wait: int = 0) -> dict[str, Any]:
    delays = np.full(len(values), delay, np.uint32)
    return {"IN": np.array(values, np.int32), "DELAY": delays, "WAIT": np.array([wait], np.uint32)}


@pytest.mark.behaviour("L0_decoupled", "a request has a response for each element, in order", through="grpc")
def test_a_request_has_as_many_responses_as_its_model_sends(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.ask("repeat_int32", "a", **repeat([7, 5, 3]))
        replies = asked.to_end()
        assert [(reply.value("OUT"), reply.value("IDX"), reply.is_final) for reply in replies] == [
            *[(7, 0, False), (5, 1, False), (3, 2, False)],
            (None, None, True),
        ]
        assert {reply.result.get_response().id for reply in replies} == {"a"}
        assert replies[-1].result.get_response().model_name == "repeat_int32"


@pytest.mark.behaviour("L0_decoupled", "the empty final response is sent to those who ask for it", through="grpc")
def test_the_mark_of_the_end_alone_is_sent_to_those_who_want_it(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.ask("repeat_int32", "none", marks_end=False, **repeat([]))
        asked.ask("repeat_int32", "one", marks_end=False, **repeat([4]))
        asked.ask("square_int32", "square", marks_end=False, IN=np.array([3], np.int32))
        replies = [asked.next() for _ in range(4)]
        values = [(reply.result.get_response().id, reply.value("OUT"), reply.is_final) for reply in replies]
        assert sorted(values) == [("one", 4, False), *[("square", 3, False)] * 2, ("square", 3, True)]


@pytest.mark.behaviour("L0_decoupled", "responses come while execute still runs, and end with it", through="grpc")
def test_responses_come_while_the_model_goes_on(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.ask("repeat_int32", **repeat([1, 2], wait=2000))
        assert [reply.value("OUT") for reply in asked.to_end()] == [1, 2, None]


@pytest.mark.behaviour("L0_decoupled", "a wrong response does not end its request, nor the stream", through="grpc")
def test_an_error_is_a_response_like_others(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.prompt("say=a fail=wrong say=b")
        assert [reply.said for reply in asked.to_end()] == ["a", "wrong", "b", None]


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("raise=oh", "the model failed: scripted:1: ValueError: oh (model.py:40)"),
        ("exit", "the model failed: scripted:1: the process of the model exited with status 1"),
        ("drop", "the model failed: scripted:1: the model has dropped its response sender without a final response"),
    ],
)
def test_a_model_that_fails_in_the_middle_ends_its_request_once(server: GatewayServer, deed: str, reason: str) -> None:
    with stream(server) as asked:
        asked.prompt(f"say=a {deed}")
        assert [reply.said for reply in asked.to_end()] == ["a", reason]
        assert not asked.has_more()


@pytest.mark.behaviour("L0_backend_python", "a decoupled model sees the id and the parameters", through="grpc")
def test_a_model_sees_its_request(server: GatewayServer) -> None:
    with stream(server) as asked:
        tensor = tritonclient.grpc.InferInput("PROMPT", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"tell"], np.object_))
        asked.client.async_stream_infer("scripted", [tensor], request_id="me", parameters={"n": 1})
        assert asked.next().said == 'me{"n":1}'


@pytest.mark.behaviour("L0_backend_python", "a decoupled model calls other models", through="grpc")
def test_a_model_calls_another_one_of_its_partition(server: GatewayServer) -> None:
    """The partition of a batch that has called takes other batches, of the same model as well."""
    refused = "A call of a model doesn't support models with decoupled transaction policy"
    with stream(server) as asked, stream(server) as other:
        for _ in range(3):
            asked.prompt("say=a call=echo say=b later=echo call=echo call=scripted call=nothing")
            other.prompt("call=echo say=other")
            *said, missing, end = [reply.said for reply in asked.to_end()]
            assert said == ["a", "2.5", "b", "2.5", "2.5", refused]
            assert missing is not None
            assert "'nothing'" in missing
            assert end is None
            assert [reply.said for reply in other.to_end()] == ["2.5", "other", None]


def test_a_model_may_hold_a_lock_while_it_calls(server: GatewayServer) -> None:
    with ExitStack() as opened:
        streams = [opened.enter_context(stream(server)) for _ in range(2)]
        for each in streams:
            each.prompt("locked=echo later=echo")
        for each in streams:
            assert [reply.said for reply in each.to_end()] == ["2.5", "2.5", None]


def test_a_model_that_has_called_waits_for_a_client_that_does_not_read(server: GatewayServer, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with stream(server) as asked:
        asked.prompt(f"call=echo flood=100:{note} call=echo")
        said = [reply.said for reply in asked.to_end()]
        assert (len(said), said[0], said[-2:]) == (103, "2.5", ["2.5", None])
        asked.prompt(f"call=echo until={note}.gone")
        assert [asked.next().said for _ in range(2)] == ["2.5", "more"]
        asked.client.stop_stream(cancel_requests=True)
    until(Path(f"{note}.gone").exists)


@pytest.mark.parametrize("deed", ["exit", "raise=oh", "drop", "kill"])
def test_a_model_that_fails_after_a_call_ends_its_request_once(server: GatewayServer, deed: str) -> None:
    with stream(server) as asked:
        asked.prompt(f"call=echo {deed}")
        first, second = asked.next(), asked.next()
        assert (first.said, second.error is not None) == ("2.5", True)
        until(lambda: server.request("GET", "/v2/models/square_int32/ready")[0] == 200)
        assert not asked.has_more()


def test_a_worker_that_dies_in_the_middle_ends_its_requests_once(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.prompt("say=a kill")
        first, second = asked.next(), asked.next()
        assert (first.said, str(second.error)[:30]) == ("a", "the worker died with the reque")
        until(lambda: server.request("GET", "/v2/models/square_int32/ready")[0] == 200)
        assert not asked.has_more()


@pytest.mark.behaviour("L0_request_cancellation", "a decoupled model hears that its client has gone", through="grpc")
def test_a_model_hears_that_its_client_has_gone(server: GatewayServer, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with stream(server) as asked:
        asked.prompt(f"until={note}")
        assert asked.next().said == "more"
        asked.client.stop_stream(cancel_requests=True)
    until(note.exists)
    with stream(server) as asked:
        asked.prompt("say=next")
        assert asked.next().said == "next"


def test_a_model_waits_for_a_client_that_does_not_read(server: GatewayServer, tmp_path: Path) -> None:
    """Under way are the bytes that the connection takes, and a window of responses."""
    note = tmp_path / "sent"
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 10)]
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url, channel_args=options)
    with client:
        blocked: queue.Queue[None] = queue.Queue()
        replies: list[str] = []

        def take(result: Any, error: Any) -> None:
            replies.append(str(error) if error else result.as_numpy("TEXT").item().decode())
            if len(replies) == 1:
                blocked.get(timeout=60)

        client.start_stream(take)
        tensor = tritonclient.grpc.InferInput("PROMPT", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([f"flood=3000:{note}".encode()], np.object_))
        client.async_stream_infer("scripted", [tensor])
        seen = [0]

        def stands_still() -> bool:
            seen.append(int(note.read_text() or 0) if note.exists() else 0)
            return seen[-1] > RESPONSE_WINDOW and seen[-1] == seen[max(len(seen) - 20, 0)] and len(seen) > 20

        until(stands_still)
        assert seen[-1] < 3000
        blocked.put(None)
        until(lambda: len(replies) == 3000, 120)
        client.stop_stream()
    assert replies == [str(number).zfill(2000) for number in range(3000)]


@pytest.mark.behaviour("L0_decoupled", "a unary call of a decoupled model is refused", through="http grpc")
def test_calls_with_one_answer_are_refused(server: GatewayServer) -> None:
    expected = "{} doesn't support models with decoupled transaction policy"
    http = tritonclient.http.InferInput("IN", [1], "INT32")
    http.set_data_from_numpy(np.array([1], np.int32))
    with (
        tritonclient.http.InferenceServerClient(server.http_url) as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.infer("square_int32", [http])
    assert (refused.value.status(), refused.value.message()) == ("501", expected.format("HTTP end point"))
    grpc = tritonclient.grpc.InferInput("IN", [1], "INT32")
    grpc.set_data_from_numpy(np.array([1], np.int32))
    with (
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.infer("square_int32", [grpc])
    status = "StatusCode.UNIMPLEMENTED"
    assert (refused.value.status(), refused.value.message()) == (status, expected.format("ModelInfer RPC"))


def test_bad_requests_of_a_stream_are_answered_with_their_error(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.ask("square_int32", "bad", IN=np.array([1, 2], np.int32))
        error = asked.next().error
        assert "unexpected shape for input 'IN'" in str(error)
        assert not asked.has_more()


def test_plain_models_share_a_stream_and_a_partition_with_decoupled_ones(server: GatewayServer) -> None:
    with stream(server) as asked:
        asked.ask("repeat_int32", "repeat", **repeat([1, 2, 3], delay=20))
        asked.ask("echo", "echo", x=np.array([[2.5]], np.float32))
        replies = [asked.next() for _ in range(5)]
        ids = [reply.result.get_response().id for reply in replies]
        assert (ids.count("repeat"), ids.count("echo")) == (4, 1)
        assert replies[ids.index("echo")].value("y") == 2.5


def generated(server: GatewayServer, path: str, **fields: Any) -> tuple[int, str, list[Any]]:
    """The status, the type, and the events or the object of a response."""
    # As curl sends it, and so does the example of Triton's documentation.
    headers = {"content-type": "application/x-www-form-urlencoded"}
    status, answered, body = server.request("POST", f"/v2/models/{path}", json.dumps(fields).encode(), headers)
    if answered["content-type"] == "application/json":
        return status, "json", [json.loads(body)]
    assert answered["content-type"] == "text/event-stream; charset=utf-8"
    *events, end = body.decode().split("\n\n")
    assert end == ""
    assert all(event.startswith("data: ") for event in events)
    return status, "events", [json.loads(event[6:]) for event in events]


def said(text: str) -> dict[str, str]:
    return {"model_name": "scripted", "model_version": "1", "TEXT": text}


@pytest.mark.behaviour("L0_http", "generate answers with the one response of a model", through="http")
def test_generate_has_one_response(server: GatewayServer) -> None:
    assert generated(server, "scripted/generate", PROMPT="say=hello", id="7") == (
        *(200, "json"),
        [{"id": "7", **said("hello")}],
    )
    echoed = {"model_name": "echo", "model_version": "1", "y": 2.5}
    assert generated(server, "echo/versions/1/generate", x=2.5) == (200, "json", [echoed])
    assert generated(server, "echo/generate_stream", parameters={"x": [2.5], "temperature": 0}) == (
        *(200, "events"),
        [echoed],
    )


@pytest.mark.behaviour("L0_http", "generate fails unless there is exactly one response", through="http")
@pytest.mark.parametrize("prompt", ["", "say=a say=b", "say=a fail=b"])
def test_generate_fails_unless_there_is_one_response(server: GatewayServer, prompt: str) -> None:
    status, kind, (answer,) = generated(server, "scripted/generate", PROMPT=prompt)
    assert (status, kind) == (500, "json")
    assert answer["error"].startswith("generate expects model to produce exactly 1 response")


@pytest.mark.behaviour("L0_http", "generate_stream has an event for each response, errors among them", through="http")
def test_generate_stream_has_an_event_for_each_response(server: GatewayServer) -> None:
    wrong = {"error": "wrong"}
    late = {"error": "the model failed: scripted:1: ValueError: late (model.py:40)"}
    expected = {
        "say=a say=b": (200, [said("a"), said("b")]),
        "say=a fail=wrong say=b": (200, [said("a"), wrong, said("b")]),
        "say=a raise=late": (200, [said("a"), late]),
        "fail=wrong": (500, [wrong]),
        "raise=late": (500, [late]),
        "": (200, []),
    }
    for prompt, (status, events) in expected.items():
        assert generated(server, "scripted/generate_stream", PROMPT=prompt) == (status, "events", events)


@pytest.mark.behaviour("L0_http", "what is wrong before inference is answered as JSON", through="http")
def test_bad_generate_requests_are_answered_as_json(server: GatewayServer) -> None:
    for path in ("generate", "generate_stream"):
        status, kind, (answer,) = generated(server, f"scripted/{path}", other=1)
        assert (status, kind) == (400, "json")
        assert "missing required input(s) 'PROMPT'" in answer["error"]
        assert generated(server, f"nothing/{path}")[:2] == (404, "json")


def test_events_come_as_the_model_sends_them_and_a_client_that_leaves_is_noticed(
    server: GatewayServer, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", "/v2/models/scripted/generate_stream", json.dumps({"PROMPT": f"until={note}"}))
    response = connection.getresponse()
    assert json.loads(response.readline()[6:]) == said("more")
    response.close()
    connection.close()
    until(note.exists)


def test_a_model_that_sends_too_much_for_generate_is_cancelled(server: GatewayServer, tmp_path: Path) -> None:
    """The second response shows that there is not one alone."""
    note = tmp_path / "note"
    assert generated(server, "scripted/generate", PROMPT=f"until={note}")[0] == 500
    until(note.exists)
