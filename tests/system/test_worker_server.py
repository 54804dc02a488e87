"""A real `sluice worker`: sessions of gateways, plain V2 clients, and clients that mean no good."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from sluice.gateway.cli.main import main
from sluice.gateway.http2.frames import DATA, END_HEADERS, HEADERS, PREFACE, frame, settings_frame, window_update
from sluice.gateway.http2.header_blocks import encode_fields
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.about import METHOD, MOST_PADDING, AskAbout, survey
from sluice.gateway.worker_protocol.client import Credentials, SessionRefused, open_session
from sluice.gateway.worker_protocol.framing import head_of
from sluice.gateway.worker_protocol.messages import (
    KEY_METADATA,
    SERVICE,
    SESSION,
    Asked,
    Draining,
    Fault,
    Hello,
    Loaded,
    Ping,
    RemoteLoad,
    RemoteModel,
    RemoteRun,
    RemoteUnload,
    RunRefused,
    SessionTensor,
    Unloaded,
    Withdraw,
    Withdrawn,
    WorkerBack,
    WorkerLost,
)
from sluice.gateway.worker_server.server import MOST_OPENING
from sluice.models.backends.requests import RequestPart
from sluice.models.client_tls import ClientTls
from sluice.models.errors import PartitionError
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.models.sequence_batching import SequenceRow, SequenceStep
from sluice.models.tensors.spec import DataType
from tests.support.certificates import certificate
from tests.support.gateway.worker_server import ANSWER_S, WorkerProcess, gateway_session, worker_server
from tests.support.models.onnx_models import save_identity
from tests.support.models.sequence_models import save_accumulator
from tests.support.models.timed_models import save_timed

KEY = "open-sesame"
KNOWN = Credentials(KEY)
WIDTH = 600_000
"""Items of a row whose batch is sent in several chunks."""
ROW = np.ones((1, 1), np.float32)
NOISE = Random(1).randbytes(1000)
DYING = """
import os, signal

def infer(inputs):
    if (inputs["x"] < 0).any():
        os.kill(os.getppid(), signal.SIGKILL)
    return {"y": inputs["x"]}
"""
STRICT = """
import triton_python_backend_utils as utils

class TritonPythonModel:
    def initialize(self, args):
        family = utils.MetricFamily("seen_rows", "Rows.", utils.MetricFamily.COUNTER)
        self.seen = family.Metric(labels={})

    def execute(self, requests):
        answers = []
        for request in requests:
            x = utils.get_input_tensor_by_name(request, "x").as_numpy()
            self.seen.increment(len(x))
            if (x < 0).any():
                answers.append(utils.InferenceResponse(error=utils.TritonError(f"{request.request_id()} is below 0")))
            else:
                answers.append(utils.InferenceResponse([utils.Tensor("y", x / 10)]))
        return answers
"""
HELD = """
import time
from pathlib import Path

ran = 0

def infer(inputs):
    global ran
    if inputs["x"].any():  # none of those that warm it
        ran += 1
        while not Path({go!r}).exists():
            time.sleep(0.001)
    return {{"y": 0 * inputs["x"] + ran}}
"""
PYTHON_CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""


def remote_model(entry: ModelEntry) -> RemoteModel:
    """A model of a repository as its gateway orders it."""
    spec = entry.spec
    return RemoteModel(
        spec.key, str(entry.path), entry.backend, (1, 8), spec.batchable, config=spec.config, declared=spec.declared
    )


class Gate:
    """A file that batches of the model `held` wait for."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def open(self) -> None:
        self.file.touch()

    def shut(self) -> None:
        self.file.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def any_gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("held") / "go")


@pytest.fixture
def gate(any_gate: Gate) -> Iterator[Gate]:
    """The gate, which is shut."""
    any_gate.shut()
    yield any_gate
    any_gate.open()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, any_gate: Gate) -> dict[str, RemoteModel]:
    """Models that answer with their inputs: one of any width, one that is quick, and one that ends its worker.

    `held` answers with the number of batches that it has run, each once the gate is open.
    """
    root = tmp_path_factory.mktemp("models")
    (root / "same" / "1").mkdir(parents=True)
    save_identity(root / "same" / "1" / "model.onnx", DataType.FP32, ("n",))
    save_timed(root, "quick", {1: 1.0})
    save_accumulator(root / "sums")
    for name, code in (("dying", DYING), ("strict", STRICT), ("held", HELD.format(go=str(any_gate.file)))):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(PYTHON_CONFIG)
        (root / name / "1" / "model.py").write_text(code)
    found = Repository.scan(root)
    assert not found.broken
    return {entry.spec.name: remote_model(entry) for entry in found.models.values()}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker server with a key."""
    directory = tmp_path_factory.mktemp("worker")
    (directory / "key").write_text(f"{KEY}\n")
    with worker_server(directory, ["--name", "w0", "--node", "n1", "--key-file", str(directory / "key")]) as server:
        yield server


def test_a_batch_of_several_chunks_comes_back_as_it_was(worker: WorkerProcess, models: dict[str, RemoteModel]) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            welcome = gateway.session.welcome
            assert (welcome.name, welcome.node, welcome.kind) == ("w0", "n1", "cpu1")
            assert welcome.worker.evidence.cores == welcome.partition.cores
            loaded = await gateway.load(models["same"])
            assert loaded.table is not None
            rows = [np.random.default_rng(n).random((n, WIDTH), np.float32) for n in (1, 3, 2)]
            numbers = [gateway.run("same:1", x=x) for x in rows]
            for number, sent in zip(numbers, rows, strict=True):
                finished, outputs = await gateway.outputs()
                assert finished.batch == number
                assert finished.ran_ns > 0
                np.testing.assert_array_equal(outputs["y"], sent)

    asyncio.run(go())


def test_models_stay_loaded_for_the_next_session_unless_it_does_not_ask_for_them(
    worker: WorkerProcess, models: dict[str, RemoteModel]
) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            for name in ("same", "quick"):
                assert (await gateway.load(models[name])).table is not None
        async with gateway_session(worker.url, KNOWN) as gateway:
            held = {each.key: each for each in gateway.session.welcome.worker.models}
            assert {"same:1", "quick:1"} <= held.keys()
            assert await gateway.load(models["quick"]) == held["quick:1"]  # not measured again
            gateway.run("quick:1", x=ROW)
            await gateway.outputs()
            gateway.session.send(RemoteUnload("quick:1"))
            assert (await gateway.next(Unloaded)).key == "quick:1", "it hears of its own orders alone"
            gateway.run("same:1", x=ROW)
            assert (await gateway.next(RunRefused)).message == "the worker does not hold same:1"
            for order in (RemoteLoad(models["quick"]), RemoteUnload("quick:1"), RemoteLoad(models["quick"])):
                gateway.session.send(order)
            assert (await gateway.next(Unloaded)).key == "quick:1", "also if it is loaded again at once"
            assert (await gateway.next(Loaded)).model.table is not None
            gateway.session.send(RemoteUnload("quick:1"))
            await gateway.next(Unloaded)
            gateway.run("quick:1", x=ROW)
            refused = await gateway.next(RunRefused)
            assert refused.fault is Fault.RESOURCES
            assert refused.message == "the worker does not hold quick:1"

    asyncio.run(go())


def test_models_that_cannot_be_loaded_are_refused_with_the_reason(
    worker: WorkerProcess, models: dict[str, RemoteModel]
) -> None:
    quick = models["quick"]
    decoupled = '{"model_transaction_policy": {"decoupled": true}}'

    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            for changes, reason in (
                ({"path": "/nowhere/model.onnx"}, "/nowhere/model.onnx is not on this machine"),
                ({"path": "/" + "x" * 300}, "x is not on this machine"),
                ({"path": "/a\0b"}, "is not on this machine"),
                *(
                    ({"key": key}, "expected a model NAME:VERSION")
                    for key in ("", "other", "\n:1", "o:x", "o" * 1024 + ":1")
                ),
                ({"backend": "os"}, "expected a backend of onnxruntime, python, timed, got 'os'"),
                ({"config": "{"}, "its configuration cannot be read"),
                ({"config": decoupled}, "decoupled models run on partitions of the gateway's own machine only"),
                ({"path": __file__}, "Expected `object`"),  # it is no JSON
            ):
                result = await gateway.load(msgspec.structs.replace(quick, **{"key": "other:1"} | changes))
                assert result.table is None
                assert reason in result.error

    asyncio.run(go())


def test_batches_begin_within_their_deadline_or_not_at_all_and_can_be_taken_back(
    worker: WorkerProcess, models: dict[str, RemoteModel], gate: Gate
) -> None:
    async def ask() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            assert (await gateway.load(models["held"])).table is not None
            running = gateway.run("held:1", x=ROW)
            next_one = gateway.run("held:1", 50_000_000, x=ROW)  # the worker process has it already
            late = gateway.run("held:1", 60_000_000, x=ROW)
            withdrawn = gateway.run("held:1", x=ROW)
            gateway.session.send(Withdraw(withdrawn))
            assert (await gateway.next(Withdrawn)).batch == withdrawn
            refused = {(each.batch, each.fault) for each in [await gateway.next(RunRefused) for _ in range(2)]}
            assert refused == {(next_one, Fault.DEADLINE), (late, Fault.DEADLINE)}
            gate.open()
            assert (await gateway.outputs())[0].batch == running

    asyncio.run(ask())


def test_batches_that_the_worker_process_has_are_taken_back_while_another_one_runs(
    worker: WorkerProcess, models: dict[str, RemoteModel], gate: Gate
) -> None:
    async def ask() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            assert (await gateway.load(models["held"])).table is not None
            running = gateway.run("held:1", x=ROW)
            taken_back = [gateway.run("held:1", x=ROW) for _ in range(5)]
            for batch in taken_back:  # each is sent to the process once the one before is gone
                gateway.session.send(Withdraw(batch))
            assert [(await gateway.next(Withdrawn)).batch for _ in taken_back] == taken_back
            last = gateway.run("held:1", x=ROW)
            gate.open()
            first, second = [await gateway.outputs() for _ in range(2)]
            assert [first[0].batch, second[0].batch] == [running, last]
            assert second[1]["y"].item() - first[1]["y"].item() == 1  # nothing ran in between

    asyncio.run(ask())


def test_confidences_errors_of_requests_and_metrics_come_with_the_outputs(
    worker: WorkerProcess, models: dict[str, RemoteModel]
) -> None:
    strict = msgspec.structs.replace(models["strict"], confidences=(("y", Confidence.MAX),))
    x = np.array([[2], [-1], [5]], np.float32)
    requests = (RequestPart(1, "first"), RequestPart(1, "second"), RequestPart(1, "third"))

    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            assert (await gateway.load(strict)).table is not None
            gateway.run("strict:1", requests=requests, x=x)
            finished, outputs = await gateway.outputs()
            assert [(each.position, each.message) for each in finished.errors] == [(1, "second is below 0")]
            assert outputs["y"][[0, 2], 0].tolist() == pytest.approx([0.2, 0.5])
            ((first, _, third),) = finished.confidences
            assert (first, third) == pytest.approx((0.2, 0.5))
            assert [(each.name, each.value) for each in finished.metrics][-1] == ("seen_rows", 3.0)

    asyncio.run(go())


def test_states_of_sequences_stay_in_the_worker(worker: WorkerProcess, models: dict[str, RemoteModel]) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            assert (await gateway.load(models["sums"])).table is not None
            for number, total in ((1, 1), (2, 3), (3, 6)):
                rows = (SequenceRow(0, SequenceStep(7, start=number == 1)),)
                gateway.run("sums:1", sequences=rows, INPUT=np.array([[number]], np.int32))
                _, outputs = await gateway.outputs()
                assert outputs["OUTPUT"].tolist() == [[total]]

    asyncio.run(go())


def test_a_worker_process_that_dies_comes_back_with_its_models(
    worker: WorkerProcess, models: dict[str, RemoteModel]
) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            await gateway.load(models["quick"])
            await gateway.load(models["dying"])
            before = gateway.session.welcome.worker.pid
            batch = gateway.run("dying:1", x=-ROW)
            refused = await gateway.next(RunRefused)
            assert (refused.batch, refused.fault) == (batch, Fault.LOST)
            assert "killed by SIGKILL" in (await gateway.next(WorkerLost)).reason
            back = (await gateway.next(WorkerBack)).worker
            assert back.pid != before
            assert {each.key for each in back.models if each.table is not None} == {"quick:1", "dying:1"}
            gateway.run("quick:1", x=ROW)
            await gateway.outputs()

    asyncio.run(go())


# -- who gets the worker


def refusal(url: str, credentials: Credentials, version: str = "", gateway: str = "other") -> SessionRefused:
    """The refusal of a session."""

    async def go() -> SessionRefused:
        hello = Hello(version or server_version(), gateway, 3.0)
        with pytest.raises(SessionRefused) as refused:
            await open_session(url, credentials, hello, lambda message, tensors: None, lambda reason: None)
        return refused.value

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        ("", "", f"the worker server wants a key, in the metadata {KEY_METADATA}"),
        ("open-sesam", "", "the key is wrong"),
        (KEY, "9.9.9", f"the gateway has the version 9.9.9, the worker server {server_version()}"),
    ],
)
def test_strangers_are_refused_with_the_reason(worker: WorkerProcess, key: str, version: str, reason: str) -> None:
    refused = refusal(worker.url, Credentials(key), version)
    assert refused.reason == reason
    assert str(refused) == f"the worker server at {worker.url} refused the session: {reason}"
    assert not refused.retry


@pytest.mark.parametrize("gateway", ["", "g" * 257, "g\n1"])
def test_a_gateway_without_a_usable_name_is_refused(worker: WorkerProcess, gateway: str) -> None:
    refused = refusal(worker.url, KNOWN, "", gateway)
    assert refused.reason.startswith("expected a name of the gateway of 1 to 256 printable characters, got '")
    assert not refused.retry


def test_one_gateway_has_the_worker_at_a_time(worker: WorkerProcess) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN, "first") as first:
            refused = await asyncio.to_thread(refusal, worker.url, KNOWN, "", "second")
            assert refused.reason == "gateway first has the worker"
            assert (refused.retry, refused.holder) == (True, "first")
            assert (await first.next(Asked)).gateway == "second"
            async with gateway_session(worker.url, KNOWN, "first") as again:  # it has lost the other connection
                assert again.session.welcome.session > first.session.welcome.session
                async with asyncio.timeout(ANSWER_S):
                    assert await first.closed == "the gateway has opened another session"
        async with gateway_session(worker.url, KNOWN, "second") as second:
            assert second.session.welcome.name == "w0"

    asyncio.run(go())


def test_a_gateway_that_expects_another_kind_is_refused_and_does_not_ask_the_holder(worker: WorkerProcess) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN, "first") as first:
            hello = Hello(server_version(), "second", 3.0, "cpu7")
            with pytest.raises(SessionRefused) as refused:
                await open_session(worker.url, KNOWN, hello, lambda message, tensors: None, lambda reason: None)
            assert refused.value.reason == "it is a partition of the kind cpu1, expected cpu7"
            assert (refused.value.retry, refused.value.holder) == (False, "")
            await asyncio.to_thread(refusal, worker.url, KNOWN, "", "third")
            assert (await first.next(Asked)).gateway == "third"

    asyncio.run(go())


def test_a_gateway_is_refused_again_and_again_with_the_reason(worker: WorkerProcess) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN, "first"):
            for _ in range(MOST_OPENING + 1):
                refused = await asyncio.to_thread(refusal, worker.url, KNOWN, "", "second")
                assert refused.holder == "first"

    asyncio.run(go())


def test_a_silent_gateway_loses_its_lease_and_its_batches(
    worker: WorkerProcess, models: dict[str, RemoteModel], gate: Gate
) -> None:
    """A client of grpcio, which sends no pings."""

    async def ask() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            assert (await gateway.load(models["held"])).table is not None
            gate.open()
            gateway.run("held:1", x=ROW)
            _, outputs = await gateway.outputs()
            ran_before = outputs["y"].item()
            gate.shut()
        tensor = SessionTensor("x", DataType.FP32, ROW.shape, ROW.nbytes)
        hello = Hello(server_version(), "silent", 0.3)
        sent = [RemoteLoad(models["held"]), *(RemoteRun(n, "held:1", (tensor,)) for n in (1, 2, 3))]
        bodies = [head_of(each) + (ROW.tobytes() if isinstance(each, RemoteRun) else b"") for each in (hello, *sent)]
        status, details, _ = await talk(worker.url, bodies)
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("the lease is over: nothing has come for ")
        async with gateway_session(worker.url, KNOWN) as gateway:
            await gateway.load(models["held"])
            gateway.run("held:1", x=ROW)
            gate.open()
            finished, outputs = await gateway.outputs()
            assert finished.batch == 1
            ran = outputs["y"].item() - ran_before
            assert ran <= 2, "only the batch that had begun is before it"

    asyncio.run(ask())


# -- messages that no gateway sends


async def talk(url: str, messages: Sequence[bytes], ends: bool = False) -> tuple[grpc.StatusCode, str, list[bytes]]:
    """Send messages in a session over grpcio; returns the status of the call, its details, and what came."""
    came: list[bytes] = []
    async with grpc.aio.insecure_channel(url) as channel:
        call: Any = channel.stream_stream(SESSION)(metadata=((KEY_METADATA, KEY),))  # type: ignore[call-arg]
        try:
            for message in messages:
                await call.write(message)
            if ends:
                await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                came.append(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code(), await call.details(), came


HELLO = head_of(Hello(server_version(), "hostile", 3.0))
RUN = RemoteRun(7, "same:1", (SessionTensor("x", DataType.FP32, (1, 4), 16),))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b"\xff" * 100], "a message has 4294967295 bytes"),
        ([b""], "a message has no size"),
        ([b"\x10\0\0\0abc"], "a message of 16 bytes came as 3 bytes"),
        ([b"\x03\0\0\0abc"], "a message cannot be read"),
        ([head_of(Ping(1, 1))], "a Ping came before Hello"),
        ([head_of(RUN) + bytes(16)], "a Run came before Hello"),
        ([HELLO, HELLO], "a Hello came within a session"),
        ([HELLO, bytes(4) + b"tensors"], "7 bytes of tensors came, expected 0"),
        ([HELLO, head_of(RUN) + bytes(17)], "17 bytes of tensors came with a message, expected 16"),
        ([HELLO, head_of(RUN) + bytes(8), head_of(RUN) + bytes(8)], "8 bytes of tensors came with a message"),
        ([HELLO, head_of(RUN) + bytes(8), bytes(4) + bytes(9)], "9 bytes of tensors came, expected 8"),
        (
            [HELLO, head_of(RemoteRun(1, "m", (SessionTensor("x", DataType.FP32, (3,), 8),)))],
            "tensor x: it has 8 bytes, which do not make up FP32 of the shape [3]",
        ),
        (
            [HELLO, head_of(RemoteRun(1, "m", (SessionTensor("x", DataType.INT8, (-3,), 8),)))],
            "expected no dimension below 0",
        ),
        (
            [HELLO, head_of(RemoteRun(1, "m", (SessionTensor("x", DataType.INT8, (1 << 40,), 1 << 40),)))],
            "the tensors of a batch have 1099511627776 bytes, expected at most 134217728",
        ),
        ([head_of(Hello(server_version(), "hostile", 1e9))], ""),
    ],
)
def test_a_bad_message_ends_its_session_and_nothing_else(
    worker: WorkerProcess, messages: list[bytes], reason: str
) -> None:
    status, details, came = asyncio.run(talk(worker.url, messages))
    if reason:
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert reason in details
    else:
        assert b"expected a lease of 0.1 to 60 s" in came[0]
    is_served(worker)


def is_served(worker: WorkerProcess) -> None:
    """A gateway gets the worker."""

    async def go() -> None:
        async with gateway_session(worker.url, KNOWN, "good"):
            pass

    asyncio.run(go())


def test_a_session_that_ends_within_a_message_frees_what_it_held(
    worker: WorkerProcess, models: dict[str, RemoteModel]
) -> None:
    nbytes = 100 << 20  # most of the arena
    run = RemoteRun(1, "same:1", (SessionTensor("x", DataType.FP32, (1, nbytes // 4), nbytes),))

    async def go() -> None:
        for _ in range(3):
            await talk(worker.url, [HELLO, head_of(RemoteLoad(models["same"])), head_of(run) + bytes(1000)], ends=True)
        async with gateway_session(worker.url, KNOWN, "good") as gateway:
            await gateway.load(models["same"])
            x = np.ones((1, nbytes // 4), np.float32)
            gateway.run("same:1", x=x)
            await gateway.outputs()

    asyncio.run(go())


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", NOISE, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + NOISE],
    ids=["http", "noise", "noise in http 2"],
)
def test_connections_that_speak_something_else_are_closed(worker: WorkerProcess, sent: bytes) -> None:
    host, _, port = worker.url.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(sent)
        while client.recv(4096):
            pass
    is_served(worker)


def test_a_gateway_that_does_not_read_loses_its_session(worker: WorkerProcess, models: dict[str, RemoteModel]) -> None:
    """Its answers fill what the worker server keeps for it, while it renews its lease."""
    host, _, port = worker.url.rpartition(":")
    x = bytes(8 << 20)
    tensor = SessionTensor("x", DataType.FP32, (1, len(x) // 4), len(x))

    def message(content: msgspec.Struct, body: bytes = b"") -> bytes:
        head = head_of(content)
        return b"\0" + (len(head) + len(body)).to_bytes(4, "big") + head + body

    with socket.create_connection((host, int(port)), timeout=60) as client:
        fields = ((":method", "POST"), (":scheme", "http"), (":path", SESSION), (":authority", "w"), ("te", "trailers"))
        more = (("content-type", "application/grpc"), (KEY_METADATA, KEY))
        block = encode_fields([(name.encode(), value.encode()) for name, value in (*fields, *more)])
        client.sendall(PREFACE + settings_frame({4: (1 << 31) - 1}) + frame(HEADERS, END_HEADERS, 1, block))
        client.sendall(window_update(0, 1 << 30))
        stream = message(Hello(server_version(), "deaf", 60.0)) + message(RemoteLoad(models["same"]))
        runs = (RemoteRun(number, "same:1", (tensor,)) for number in range(1, 200))
        with pytest.raises(ConnectionError):
            send_in_frames(client, stream, (message(each, x) for each in runs))
    is_served(worker)
    assert "the gateway does not read its answers" in worker.log.read_text()


def send_in_frames(client: socket.socket, first: bytes, more: Iterable[bytes]) -> None:
    """Send messages in frames of the least size that every server takes."""
    for each in chain((first,), more):
        for begin in range(0, len(each), 16384):
            client.sendall(frame(DATA, 0, 1, each[begin : begin + 16384]))


# -- plain clients


def test_a_plain_client_uses_a_loaded_model(worker: WorkerProcess, models: dict[str, RemoteModel]) -> None:
    headers = {KEY_METADATA: KEY}

    def infer() -> None:
        with tritonclient.grpc.InferenceServerClient(worker.url) as client:
            assert client.is_server_live(headers=headers)
            assert client.is_server_ready(headers=headers)
            assert client.is_model_ready("same", headers=headers)
            assert not client.is_model_ready("nobody", headers=headers)
            metadata = client.get_model_metadata("same", headers=headers)
            assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
                ("x", "FP32", [-1, -1])
            ]
            x = np.random.default_rng(5).random((2, 300), np.float32)
            given = tritonclient.grpc.InferInput("x", x.shape, "FP32")
            given.set_data_from_numpy(x)
            answer = client.infer("same", [given], request_id="r1", headers=headers)
            np.testing.assert_array_equal(answer.as_numpy("y"), x)
            assert answer.get_response().id == "r1"
            for name, inputs, header, what in (
                ("same", [given], None, "wants a key"),
                ("nobody", [given], headers, "Request for unknown model: 'nobody'"),
                ("same", [], headers, "expected 1 inputs but got 0 inputs for model 'same'"),
            ):
                with pytest.raises(InferenceServerException, match=what):
                    client.infer(name, inputs, headers=header)

    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            await gateway.load(models["same"])
            await asyncio.to_thread(infer)

    asyncio.run(go())


# -- the process


def test_a_stopping_worker_server_answers_what_it_has(
    tmp_path: Path, models: dict[str, RemoteModel], gate: Gate
) -> None:
    async def ask(url: str, process: subprocess.Popen[bytes]) -> None:
        async with gateway_session(url) as gateway:
            assert (await gateway.load(models["held"])).table is not None
            running, waiting = gateway.run("held:1", x=ROW), gateway.run("held:1", x=ROW)
            await gateway.load(models["held"])  # it has come behind them
            process.send_signal(signal.SIGTERM)
            assert "stopping" in (await gateway.next(Draining)).reason
            late = gateway.run("held:1", x=ROW)
            refused = await gateway.next(RunRefused)
            assert (refused.batch, refused.fault) == (late, Fault.RESOURCES)
            gate.open()
            assert (await gateway.outputs())[0].batch == running
            assert (await gateway.outputs())[0].batch == waiting
            async with asyncio.timeout(ANSWER_S):
                await gateway.closed

    with worker_server(tmp_path) as server:
        asyncio.run(ask(server.url, server.process))
        assert server.process.wait(ANSWER_S) == 0


def test_mutual_tls(tmp_path: Path, models: dict[str, RemoteModel]) -> None:
    for name, signer in (("ca", None), ("worker", "ca"), ("gateway", "ca"), ("stranger", None)):
        certificate(tmp_path, name, signer)
    pem = {name: str(tmp_path / name) for name in ("ca.pem", "worker.pem", "worker.key", "gateway.pem", "gateway.key")}
    arguments = ["--tls-ca", pem["ca.pem"], "--tls-certificate", pem["worker.pem"]]
    # The certificates are for localhost and 127.0.0.1.
    arguments += ["--tls-private-key", pem["worker.key"], "--listen", "127.0.0.5:0"]
    with worker_server(tmp_path, arguments) as server:

        async def go() -> None:
            ours = ClientTls(pem["ca.pem"], pem["gateway.pem"], pem["gateway.key"])
            known = Credentials.read(None, ours, "localhost")
            async with gateway_session(server.url, known) as gateway:
                await gateway.load(models["same"])
                x = np.random.default_rng(1).random((3, WIDTH), np.float32)
                gateway.run("same:1", x=x)
                np.testing.assert_array_equal((await gateway.outputs())[1]["y"], x)
            stranger = ClientTls(pem["ca.pem"], str(tmp_path / "stranger.pem"), str(tmp_path / "stranger.key"))
            for credentials in (
                Credentials.read(None, ours),
                Credentials.read(None, stranger, "localhost"),
                Credentials.read(None, ClientTls(pem["ca.pem"]), "localhost"),
                Credentials.read(None, ClientTls(str(tmp_path / "stranger.pem")), "localhost"),
                Credentials(),
            ):
                with pytest.raises(PartitionError, match=server.url):
                    async with gateway_session(server.url, credentials):
                        pass

            assert (await asyncio.to_thread(survey, server.url, "", ours, "localhost")).about.holder == ""
            with pytest.raises(PartitionError, match="Hostname Verification"):
                await asyncio.to_thread(survey, server.url, "", ours)

        asyncio.run(go())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--cores", "0", "--listen", "0.0.0.0:0"], "lets other machines run models here; expected key_file, tls"),
        (["--cores", "0", "--listen", "nothing"], "expected an address HOST:PORT"),
        (["--cores", "auto:99"], "of the cores"),
        (["--cores", "first"], "--cores: expected cores such as 0,1, or auto:N"),
        ([], "expected --config with a partition, --cores or --gpu"),
        (["--cores", "0", "--tls-ca", "ca.pem"], "--tls-ca, --tls-certificate and --tls-private-key together"),
        (["--cores", "0", "--key-file", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_settings_that_cannot_be_met(arguments: list[str], reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", *arguments]) == 2
    assert reason in capfd.readouterr().err


# -- questions without a lease


def test_a_worker_server_says_what_it_is_to_those_with_the_key(
    worker: WorkerProcess, models: dict[str, RemoteModel]
) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN, "first") as first:
            await first.load(models["same"])
            found = await asyncio.to_thread(survey, worker.url, KEY, None)
            about = found.about
            assert (about.name, about.kind, about.version, about.state) == ("w0", "cpu1", server_version(), "")
            assert (about.holder, about.models) == ("first", (models["same"].key,))
            assert about.cache is not None
            assert about.cache.free_bytes > 0
            assert abs(found.clock_ahead_ns) <= found.round_trip_ns, "it is the same clock"
            assert min(found.bytes_per_s_to, found.bytes_per_s_from) > 0

    asyncio.run(go())


def test_questions_without_the_key_or_that_ask_for_too_much_are_refused(worker: WorkerProcess) -> None:
    with pytest.raises(PartitionError, match="the key is wrong"):
        survey(worker.url, "open-sesam", None)
    with grpc.insecure_channel(worker.url) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{METHOD}", bytes, bytes)
        for question, reason in (
            (msgspec.msgpack.encode(AskAbout(b"", MOST_PADDING + 1)), "answer_padding: expected 0 to"),
            (b"\xc1 no message", "the question cannot be read"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call(question, metadata=((KEY_METADATA, KEY),), timeout=30)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert reason in str(refused.value.details())


def test_what_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"127.0.0.1:{nobody.getsockname()[1]}"
    with pytest.raises(PartitionError, match=r"^it cannot be reached: Connection refused$"):
        survey(url, "", None)
