"""The front end over a runtime that answers at once: every output is the input of the same name."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from batcher.outcome import Outcome
from gateway.answer import Answer, Tensor
from gateway.catalogue import Catalogue
from gateway.dataplane import DataPlane
from gateway.http import build_app
from gateway.metrics import Metrics
from gateway.runtime import Runtime, Submission
from models.pipeline import Pipeline, Source, Stage
from models.repository import Broken
from models.tensor import DataType, TensorSpec

ARRIVED_NS = 1_000_000_000


class InstantRuntime:
    """Records what it is given, and answers with the inputs, with `answer`, or, when told to `hold`, not at all."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.released = 0
        self.answer: Answer | None = None
        self.hold = False

    def submit(
        self,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        rows: int,
        batch_key: str,
        deadline_ns: int,
        memory_bytes: int,
    ) -> Submission:
        self.submitted.append(
            {
                "pipeline": pipeline,
                "inputs": inputs,
                "rows": rows,
                "batch_key": batch_key,
                "deadline_ns": deadline_ns,
                "memory_bytes": memory_bytes,
            }
        )
        self.arrived.set()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self.hold:
            future.set_result(self.answer or Answer(Outcome.COMPLETED, "", 0, dict(inputs), self._released))
        return Submission(len(self.submitted), future)

    def cancel(self, request: int) -> None:
        self.cancelled.append(request)
        self.gone.set()

    def _released(self) -> None:
        self.released += 1


class Exposition:
    def exposition(self) -> bytes:
        return b"sluice_requests_total 3\n"


class Front(NamedTuple):
    runtime: InstantRuntime
    catalogue: Catalogue
    dataplane: DataPlane
    app: Any


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
        stages=(Stage(name, {spec.name: Source("request", spec.name) for spec in specs}, model=f"{name}:1"),),
        sources={spec.name: (Source(name, spec.name),) for spec in specs},
        max_batch_size=max_batch_size,
        slo_ms=slo_ms,
    )


def front(*pipelines: Pipeline, max_body_bytes: int = 1 << 20) -> Front:
    catalogue = Catalogue("1.2.3", pipelines, [Broken("broken", None, "model.onnx is empty")], ["cpu0"])
    catalogue.partition_ready("cpu0", [f"{pipeline.name}:{pipeline.version}" for pipeline in pipelines], {})
    runtime = InstantRuntime()
    dataplane = DataPlane(catalogue, cast(Runtime, runtime), 1000.0, lambda: ARRIVED_NS)
    app = build_app(dataplane, catalogue, cast(Metrics, Exposition()), max_body_bytes)
    return Front(runtime, catalogue, dataplane, app)


async def call(
    app: Any, method: str, path: str, *chunks: bytes, headers: Mapping[str, str] | None = None, connection: Any = None
) -> Reply:
    """One request to an ASGI application; the body comes in `chunks`, after which the client stays."""
    messages = [
        {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        for index, chunk in enumerate(chunks or (b"",))
    ]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    if connection is not None:
        scope["sluice.connection"] = connection
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], names, b"".join(message.get("body", b"") for message in sent[1:]))


def post(app: Any, path: str, *chunks: bytes | dict[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
    """One POST, its own event loop included; a `dict` is sent as JSON."""
    encoded = [chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode() for chunk in chunks]
    return asyncio.run(call(app, "POST", path, *encoded, headers=headers))


def get(app: Any, path: str, method: str = "GET") -> Reply:
    return asyncio.run(call(app, method, path))
