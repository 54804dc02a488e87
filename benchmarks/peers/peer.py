"""The servers of the comparison: their programs, their ports, and the form of their requests."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks.peers import wire
from benchmarks.peers.wire import Form
from benchmarks.peers.workload import HERE, SHARED
from benchmarks.support.process_tree import activated
from tests.support.triton.digits import add_digits
from tests.support.triton.models import add_model
from tests.support.triton.server import command_line

MOST_ROWS = 64
CORE = 0
"""The core of all processes of a server."""


class Place(NamedTuple):
    """Where a server runs: a scratch folder, the folder of the ONNX files, its environment, its models and ports."""

    scratch: Path
    files: Path
    environment: Path
    models: tuple[str, ...]
    http_port: int
    grpc_port: int


class Launch(NamedTuple):
    """A process to start, which may start others."""

    command: list[str]
    variables: dict[str, str]
    folder: Path


@dataclass(frozen=True)
class Peer:
    """A server. `package` is the distribution whose version names it, and `notes` are for the document.

    `forms` tells the form of requests over HTTP by model, or that of all models under "": None stands for V2 with
    binary tensors. `grpc` is true where it takes the calls of V2; `per_model` where each model
    has a server of its own, so that the others are not in its way.
    """

    key: str
    name: str
    package: str
    launch: Callable[[Place, ModuleType], Launch]
    forms: Mapping[str, Form | None]
    grpc: bool
    notes: str
    per_model: bool = False

    @property
    def requirements(self) -> Path:
        """The pinned packages of its environment."""
        return HERE / self.key / "requirements.txt"

    def form(self, model: str) -> Form | None:
        """The form of requests for a model over HTTP; None is V2."""
        return self.forms[model if model in self.forms else ""]

    def grpc_headers(self, model: str) -> dict[str, str]:
        """The headers by which the server finds the model of a call."""
        return {"application": model} if self.key == "ray_serve" else {}


def _variables(place: Place, **further: str) -> dict[str, str]:
    return {
        **activated(place.environment),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PEERS_GRPC_PORT": str(place.grpc_port),
        "PEERS_HTTP_PORT": str(place.http_port),
        "PEERS_FILES": str(place.files),
        "PEERS_MODELS": ",".join(place.models),
        "PEERS_SCRATCH": str(place.scratch),
        "PYTHONPATH": str(SHARED),
        **further,
    }


def _program(key: str) -> Callable[[Place, ModuleType], Launch]:
    """A server that is a program of its own."""

    def launch(place: Place, _: ModuleType) -> Launch:
        command = [str(place.environment / "bin" / "python"), str(HERE / key / "server.py")]
        return Launch(command, _variables(place, PYTHONPATH=f"{SHARED}:{HERE / key}"), place.scratch)

    return launch


def _sluice(place: Place, _: ModuleType) -> Launch:
    repository = place.scratch / "models"
    for name in ("mlp", "wide", "image", "prep", "logreg", "rf256", "rbf"):
        _link(place.files / f"{name}.onnx", repository / name / "1" / "model.onnx")
    for pipeline in ("digits-cascade", "digits-ensemble"):
        text = (place.files / "digits" / pipeline / "pipeline.yaml").read_text().replace("rf1024", "wide")
        (repository / pipeline).mkdir()
        (repository / pipeline / "pipeline.yaml").write_text(text)
    configuration = place.scratch / "sluice.yaml"
    configuration.write_text(f"partitions: [{{name: cpu0, cores: [{CORE}]}}]\nmax_batch_size: {MOST_ROWS}\n")
    options = ["--config", str(configuration), "--repository", str(repository), "--log-level", "warning"]
    ports = ["--http-port", str(place.http_port), "--grpc-port", str(place.grpc_port)]
    command = [str(place.environment / "bin" / "sluice"), "serve", *options, *ports]
    return Launch(command, _variables(place, PYTHONPATH=""), place.scratch)


def _triton(place: Place, _: ModuleType) -> Launch:
    repository = place.scratch / "models"
    for name in ("mlp", "image"):
        add_model(repository, name, place.files / f"{name}.onnx", MOST_ROWS, "dynamic_batching { }")
    files = {name: place.files / f"{name}.onnx" for name in ("prep", "logreg", "rf256", "rbf", "wide")}
    add_digits(repository, files, "wide", MOST_ROWS)
    command, variables = command_line(
        place.environment, repository, place.grpc_port, arguments=[f"--http-port={place.http_port}"]
    )
    return Launch(command, variables, place.scratch)


def _mlserver(place: Place, served: ModuleType) -> Launch:
    settings = {
        "host": "127.0.0.1",
        "http_port": place.http_port,
        "grpc_port": place.grpc_port,
        "metrics_endpoint": None,
    }
    # The pool of workers is for more than one core; without it the model runs in the process of the server.
    further = {"parallel_workers": 0, "debug": False, "grpc_max_message_length": 64 << 20}
    (place.scratch / "settings.json").write_text(json.dumps(settings | further))
    for each in (served.ALL[name] for name in place.models):
        folder = place.scratch / each.name
        folder.mkdir()
        ends = {
            "inputs": [{"name": each.input, "datatype": each.datatype, "shape": [-1, *each.row]}],
            "outputs": [{"name": each.output, "datatype": "FP32", "shape": [-1, 10]}],
        }
        batches = {"max_batch_size": MOST_ROWS, "max_batch_time": 0.001}
        model = {"name": each.name, "implementation": "runtime.OnnxRuntime", **ends, **batches}
        (folder / "model-settings.json").write_text(json.dumps(model))
    command = [str(place.environment / "bin" / "mlserver"), "start", str(place.scratch)]
    return Launch(command, _variables(place, PYTHONPATH=f"{SHARED}:{HERE / 'mlserver'}"), place.scratch)


def _bentoml(place: Place, _: ModuleType) -> Launch:
    service = "service:Image" if place.models == ("image",) else "service:Rows"
    address = ["--host", "127.0.0.1", "--port", str(place.http_port)]
    command = [str(place.environment / "bin" / "bentoml"), "serve", service, *address]
    further = {"BENTOML_HOME": str(place.scratch / "home"), "BENTOML_DO_NOT_TRACK": "True"}
    return Launch(command, _variables(place, **further), HERE / "bentoml")


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.symlink_to(source)


V2 = {"": None}
PEERS = (
    Peer(
        "sluice",
        "Sluice",
        "sluice-gateway",
        _sluice,
        V2,
        True,
        "Models and pipelines of a repository. It batches by deadline, which is the objective of each request.",
    ),
    Peer(
        "triton",
        "Triton",
        "nvidia-pytriton",
        _triton,
        V2,
        True,
        "ONNX Runtime in its Python backend, `dynamic_batching { }`, its own ensemble, and a script of models (BLS) "
        "for the cascade. There is no package of its ONNX backend.",
    ),
    Peer(
        "mlserver",
        "MLServer",
        "mlserver",
        _mlserver,
        {"": wire.V2_LIST, "image": wire.V2_BASE64},
        True,
        "A custom runtime with adaptive batching (`max_batch_size: 64`, `max_batch_time: 0.001`), without a pool of "
        "workers. Over HTTP it reads JSON only; images come as base64.",
    ),
    Peer(
        "kserve",
        "KServe",
        "kserve",
        _program("kserve"),
        V2,
        True,
        "A `Model` of its own in its model server. It runs each request alone: KServe's batcher and its graphs of "
        "models are processes of a Kubernetes cluster.",
    ),
    Peer(
        "ray_serve",
        "Ray Serve",
        "ray",
        _program("ray_serve"),
        {"": wire.TENSOR},
        True,
        "A deployment a model with `serve.batch` (64 rows, no wait). The body is the bytes of the tensor.",
    ),
    Peer(
        "bentoml",
        "BentoML",
        "bentoml",
        _bentoml,
        {"": wire.BENTO_LIST, "image": wire.BENTO_FILE},
        False,
        "A server a model with `batchable=True` (64 rows, `max_latency_ms=50`). Rows come as lists in JSON; the image "
        "comes as a file, which it does not batch. Its gRPC server ended with version 1.1.",
        per_model=True,
    ),
    Peer(
        "litserve",
        "LitServe",
        "litserve",
        _program("litserve"),
        {"": wire.LIT_LIST, "image": wire.LIT_BASE64},
        False,
        "A server a model with `max_batch_size=64` and `batch_timeout=0.001`. It takes JSON; images come as base64.",
        per_model=True,
    ),
    Peer(
        "fastapi",
        "FastAPI",
        "fastapi",
        _program("fastapi"),
        {"": wire.TENSOR},
        False,
        "The plain server: one route a model, which runs each request alone on the event loop of uvicorn.",
    ),
)
