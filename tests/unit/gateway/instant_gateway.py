"""A gateway over a runtime that answers at once: every output is the input of the same name."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import uvloop
from fastapi import FastAPI
from uvicorn.server import ServerState

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.config.restricted import Restrictions
from sluice.gateway.config.tracing import TraceFileSettings
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.http.access import AccessRules
from sluice.gateway.http.app import build_app
from sluice.gateway.http.exchange import InferRoute
from sluice.gateway.http.page_files import PageFiles
from sluice.gateway.http.server import Connection, HttpServer, http_config, http_server
from sluice.gateway.inference.dataplane import DataPlane
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.management.repository_api import RepositoryApi
from sluice.gateway.observability.log_settings import LogSettings
from sluice.gateway.observability.meters import PipelineMeter
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.openmetrics import TEXT
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.observability.traces.settings import TraceSettings
from sluice.gateway.observability.traces.trace import RecentTraces, Trace
from sluice.gateway.overview.live import LiveOverview
from sluice.gateway.partitions.scaling import Scaling
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.gateway.resizing.resizing import Resizing
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.repository.scan import BrokenEntry
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.gateway.inventory import PlayedInventory
from tests.support.gateway.overview import overview_sources

ARRIVED_NS = 1_000_000_000
EPOCH_NS = 1_700_000_000_000_000_000
TIMEOUT_S = 60

T = TypeVar("T")


class InstantRuntime:
    """Records what it is given, and answers with the inputs, with `answer`, or, with `hold`, not at all."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.shared: list[BatchOutputs | None] = []
        self.contexts: list[TraceContext] = []
        self.cancelled: list[int] = []
        self.traces = RecentTraces(8)
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.let_free = asyncio.Event()
        self.released = 0
        self.answer: Answer | None = None
        self.hold = False
        self._held: list[tuple[Submission, Answer]] = []

    def submit(
        self,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        received_ns: int = 0,
        shared: BatchOutputs | None = None,
        trace: TraceContext = NO_TRACE,
    ) -> Submission:
        deadline_ns = ARRIVED_NS + options.budget_ns
        self.submitted.append(
            {
                "pipeline": pipeline,
                "inputs": inputs,
                "rows": options.rows,
                "batch_key": options.batch_key,
                "deadline_ns": deadline_ns,
                "memory_bytes": options.memory_bytes,
                "id": options.id,
                "max_cost": options.max_cost,
                "priority": options.priority,
                "client": client,
                "expires_ns": ARRIVED_NS + options.timeout_ns if options.timeout_ns else 0,
            }
        )
        self.shared.append(shared)
        self.contexts.append(trace)
        self.arrived.set()
        answer = self.answer or Answer(Outcome.COMPLETED, "", 0, dict(inputs), self._released)
        arrival = RequestArrived(
            len(self.submitted),
            pipeline,
            options.rows,
            deadline_ns,
            options.batch_key,
            options.memory_bytes,
            options.max_cost,
        )
        record = Trace(options.id, arrival, ARRIVED_NS, (StageConfig("only", pipeline),))
        record.outcome, record.reason, record.ended_ns = answer.outcome, answer.reason, ARRIVED_NS
        self.traces.add(record)
        submission = Submission(arrival.request, asyncio.get_running_loop(), record, PipelineMeter(["only"]))
        if self.hold:
            self._held.append((submission, answer))
        else:
            submission.settle(answer)
        return submission

    def let_go(self) -> None:
        """Answer what was held, and hold no more."""
        self.hold = False
        for submission, answer in self._held:
            submission.settle(answer)
        self._held.clear()

    def cancel(self, request: int) -> None:
        self.cancelled.append(request)
        self.gone.set()

    def _released(self) -> None:
        self.released += 1
        self.let_free.set()


class Exposition:
    async def scrape_as(self, accept: str) -> tuple[list[bytes], str]:
        return [b"sluice_requests_total", b" 3\n"], TEXT


class InstantGateway(NamedTuple):
    runtime: InstantRuntime
    inventory: PlayedInventory
    registry: ModelRegistry
    dataplane: DataPlane
    control: ControlPlane
    make_app: Callable[[], FastAPI]
    route: InferRoute
    restrictions: Restrictions | None
    access: AccessRules | None
    overview: LiveOverview

    @property
    def app(self) -> FastAPI:
        """Made when it is first wanted, which takes long."""
        return self.make_app()


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def identity(
    name: str, *tensors: tuple[str, DataType, tuple[int, ...]], max_batch_size: int = 8, slo_ms: float | None = None
) -> Pipeline:
    specs = tuple(TensorSpec(*tensor) for tensor in tensors)
    return Pipeline(
        name=name,
        version=1,
        inputs=specs,
        outputs=specs,
        stages=(Stage(name, {spec.name: TensorSource("request", spec.name) for spec in specs}, model=f"{name}:1"),),
        sources={spec.name: (TensorSource(name, spec.name),) for spec in specs},
        max_batch_size=max_batch_size,
        slo_ms=slo_ms,
    )


def instant_gateway(
    *pipelines: Pipeline,
    max_body_bytes: int = 1 << 20,
    allow_client_shm: bool = True,
    trace_file: str = "",
    restrictions: Restrictions | None = None,
    access: AccessRules | None = None,
    resizing: object = None,
    bodies: BodyMemory | None = None,
    network_ms: float = 0,
    default_model: str | None = None,
    json_rules: JsonRules | None = None,
    page: Path | None = None,
) -> InstantGateway:
    inventory = PlayedInventory("cpu0")
    registry = ModelRegistry("1.2.3", pipelines, [BrokenEntry("broken", None, "model.onnx is empty")], inventory)
    inventory.partition_ready("cpu0", [f"{pipeline.name}:{pipeline.version}" for pipeline in pipelines], {})
    runtime = InstantRuntime()
    shared_memory = SharedMemory(allow_client_shm, 1 << 20)
    dataplane = LocalDataPlane(
        registry, cast(Runtime, runtime), 1000.0, network_ms, lambda: ARRIVED_NS, shared_memory, bodies=bodies
    )
    control = ControlPlane(
        registry,
        RepositoryApi(registry),
        Statistics(),
        shared_memory,
        LogSettings(),
        TraceSettings(TraceFileSettings(trace_file), registry.names()),
        lambda: ARRIVED_NS,
        EPOCH_NS,
        inventory,
        cast(Resizing, resizing),
        Scaling({}, dict, {}),
    )

    overview = LiveOverview(overview_sources(registry, inventory, traces=runtime.traces))

    @cache
    def app() -> FastAPI:
        return build_app(
            control,
            dataplane,
            cast(ServerMetrics, Exposition()),
            runtime.traces,
            max_body_bytes,
            overview,
            restrictions,
            json_rules,
            PageFiles(Path("nowhere") if page is None else page),
        )

    return InstantGateway(
        runtime,
        inventory,
        registry,
        dataplane,
        control,
        app,
        InferRoute(dataplane, max_body_bytes, json_rules, default_model=default_model),
        restrictions,
        access,
        overview,
    )


class Client:
    """The client's end of a connection."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def send_eof(self) -> None:
        self._writer.write_eof()

    async def line(self) -> bytes:
        return await asyncio.wait_for(self._reader.readline(), TIMEOUT_S)

    async def reply(self) -> Reply:
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await asyncio.wait_for(self._reader.readexactly(int(headers["content-length"])), TIMEOUT_S)
        return Reply(int(status.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """The bytes that come until the server closes the connection."""
        return await asyncio.wait_for(self._reader.read(), TIMEOUT_S)

    def pause_reading(self) -> None:
        cast(asyncio.Transport, self._writer.transport).pause_reading()

    def resume_reading(self) -> None:
        cast(asyncio.Transport, self._writer.transport).resume_reading()

    def close(self) -> None:
        self._writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go on until the condition holds."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def iterations(count: int) -> None:
    """Let the event loop go round that many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def talk(served: InstantGateway, conversation: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """A conversation on one connection, with the event loop that servers run on."""

    async def run() -> T:
        state = ServerState()
        state.default_headers = [(b"date", b"today")]
        config = http_config(served.app, served.route, access=served.access)
        restrictions = served.restrictions
        connection = Connection(
            served.route,
            restrictions=restrictions,
            access=served.access,
            config=config,
            server_state=state,
            app_state={},
        )
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, theirs)
        client = Client(connection, *await asyncio.open_connection(sock=ours))
        try:
            return await conversation(client)
        finally:
            client.close()
            connection.transport.abort()
            while state.tasks:
                await asyncio.wait(state.tasks)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def message(method: str, path: str, *chunks: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a request; a body in several chunks is sent as such."""
    lines = {"Host": "h", **(headers or {})}
    body = b"".join(chunks)
    if len(chunks) > 1:
        lines["Transfer-Encoding"] = "chunked"
        body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    elif chunks:
        lines.setdefault("Content-Length", str(len(body)))
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
    return "\r\n".join(head).encode() + body


def post(
    served: InstantGateway, path: str, *chunks: bytes | dict[str, Any], headers: Mapping[str, str] | None = None
) -> Reply:
    """One POST on a connection of its own; a `dict` is sent as JSON."""
    encoded = [chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode() for chunk in chunks]
    return send(served, message("POST", path, *encoded, headers=headers))


def get(served: InstantGateway, path: str) -> Reply:
    return send(served, message("GET", path))


def send(served: InstantGateway, request: bytes) -> Reply:
    """The answer to the bytes of a request."""

    async def conversation(client: Client) -> Reply:
        client.send(request)
        return await client.reply()

    return talk(served, conversation)


def serve(
    served: InstantGateway,
    front_door: FrontDoor,
    conversation: Callable[[HttpServer], Awaitable[None]],
    max_bytes: int | None = None,
) -> None:
    """Hold a conversation with an HTTP server on a port; bodies are limited to `max_bytes`, if given."""

    async def run() -> None:
        route = served.route if max_bytes is None else InferRoute(served.dataplane, max_bytes)
        server = http_server(http_config(served.app, route, front_door), "127.0.0.1", 0, front_door=front_door)
        serving = asyncio.create_task(server.serve())
        try:
            await conversation(server)
        finally:
            server.should_exit = True
            await serving

    asyncio.run(run())
