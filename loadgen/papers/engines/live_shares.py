"""Shares of this machine on a real server: cores, and shares of an accelerator that is emulated.

The emulated shares are partitions under MPS. A socket that never answers is in the place of the daemon, so the server
takes them and reports them as unenforced. Their model sleeps for as long as a batch takes on such a share. The
scheduler, the workers and the way to them are those of any server.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean, median
from urllib.parse import urlsplit

import msgspec
import numpy as np

from sluice.loadgen.papers.engines.chaining_client import Tensor, V2Connection
from sluice.loadgen.papers.engines.image_models import SIDE, save_classifier
from sluice.loadgen.papers.engines.live_server import live_server
from sluice.models.backends import onnxruntime, timed
from sluice.models.backends.base import Backend
from sluice.models.units import NS_PER_S

GPU = "GPU-00000000-0000-0000-0000-000000000000"
"""A device that does not exist."""
SHARE_MIB = 2048
"""Memory of a share, as in the paper's Table 3."""
CHANNELS = (16, 64, 256, 1024, 2048)
"""The network that runs on cores: some milliseconds, and 94 MB of weights."""
_MODEL = "model"
_TIMEOUT_S = 120.0


class SharedTimes(msgspec.Struct, frozen=True):
    """The mean time of a batch in seconds, by round: without the server, and with it."""

    bare_s: tuple[float, ...]
    shared_s: tuple[float, ...]

    @property
    def overhead(self) -> float:
        """The median of the rounds, by the paper's formula."""
        return median((shared - bare) / bare for bare, shared in zip(self.bare_s, self.shared_s, strict=True))


class CoreTimes(msgspec.Struct, frozen=True):
    """Batches on a core, as the worker and as the client see them."""

    in_worker: SharedTimes
    at_client: SharedTimes


class ComputedTime(msgspec.Struct, frozen=True):
    """The number of a model's requests that ran, and for how long all of them together."""

    requests: int
    seconds: float


class ServerAnswer(msgspec.Struct, frozen=True):
    """An answer of the server: its HTTP status and its body, in JSON."""

    status: int
    body: str

    @property
    def error(self) -> str:
        """The problem that the server names; "" if there is none."""
        return str(json.loads(self.body).get("error", ""))


def timed_file(folder: Path) -> Path:
    """The model of the emulated shares."""
    return folder / "repository" / _MODEL / "1" / "model.timed.json"


@contextmanager
def emulated_gpu(folder: Path) -> Iterator[Callable[[str, int], dict[str, object]]]:
    """Emulate the accelerator until the block ends; gives the settings of a share by its name and its percent."""
    pipes = folder / "pipes"
    pipes.mkdir()

    def share(name: str, percent: int) -> dict[str, object]:
        settings = {"kind": "mps", "name": name, "uuid": GPU, "pipes": str(pipes)}
        return {**settings, "share_percent": percent, "memory_mb": SHARE_MIB}

    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(pipes / "control"))
        daemon.listen()
        yield share


@contextmanager
def emulated_shares(folder: Path, percents: Sequence[int], batch_s: float) -> Iterator[str]:
    """Serve shares of the emulated accelerator, on which a batch takes `batch_s`, until the block ends; gives the URL.

    Raises `ConfigError` for more than all of the accelerator.
    """
    _save_timed(timed_file(folder), batch_s)
    with emulated_gpu(folder) as share:
        partitions = [share(f"share{number}", percent) for number, percent in enumerate(percents)]
        with live_server(folder, {"partitions": partitions}) as url:
            yield url


def time_jobs(url: str, folder: Path, jobs: int, batches: int, rounds: int) -> SharedTimes:
    """Equal jobs at the same time on the emulated shares; without the server a batch is a sleep in this process."""
    bare, row = timed.load(str(timed_file(folder)), 1), np.ones((1, 1), np.float32)
    with ThreadPoolExecutor(jobs) as clients, ExitStack() as stack:
        connections = [stack.enter_context(closing(V2Connection(url, as_json=False))) for _ in range(jobs)]

        def shared_s() -> float:
            return mean(clients.map(lambda each: _ask_s(each, row, batches), connections))

        return _in_turns(rounds, lambda: _run_s(bare, row, batches), shared_s)


def resize(url: str, partition: str, size: Mapping[str, object]) -> ServerAnswer:
    """Ask for another size of a partition."""
    return post(url, f"/v2/sluice/partitions/{partition}/resize", size)


def post(url: str, path: str, body: Mapping[str, object]) -> ServerAnswer:
    """Send an object as JSON to a path of the server."""
    return _send(url, "POST", path, json.dumps(body))


def computed(url: str, model: str) -> ComputedTime:
    """The time for which a model has run in workers."""
    answer = _send(url, "GET", f"/v2/models/{model}/stats")
    found = json.loads(answer.body)["model_stats"][0]["inference_stats"]["compute_infer"]
    return ComputedTime(found["count"], found["ns"] / NS_PER_S)


def share_core(folder: Path, core: int, batches: int) -> CoreTimes:
    """Batches of one image, in a worker that is pinned to `core` and in this process, in turns.

    This process may run on any core.
    """
    file = folder / "repository" / _MODEL / "1" / "model.onnx"
    save_classifier(file, 0, CHANNELS)
    images = np.random.default_rng(0).standard_normal((1, 3, SIDE, SIDE), np.float32)
    bare = onnxruntime.load(str(file), 1)
    config = {"partitions": [{"name": "cpu0", "cores": [core]}]}
    in_worker_s: list[float] = []
    with live_server(folder, config) as url, closing(V2Connection(url, as_json=False)) as connection:

        def shared_s() -> float:
            before_s = computed(url, _MODEL).seconds
            took_s = _ask_s(connection, images, 1)
            in_worker_s.append(computed(url, _MODEL).seconds - before_s)
            return took_s

        times = _in_turns(batches, lambda: _run_s(bare, images, 1), shared_s)
    return CoreTimes(SharedTimes(times.bare_s, tuple(in_worker_s[-batches:])), times)


def _in_turns(rounds: int, bare: Callable[[], float], shared: Callable[[], float]) -> SharedTimes:
    """Both after a first time, in turns."""
    bare()
    shared()
    times = [(bare(), shared()) for _ in range(rounds)]
    return SharedTimes(*(tuple(each) for each in zip(*times, strict=True)))


def _run_s(backend: Backend, rows: Tensor, batches: int) -> float:
    began_s = time.monotonic()
    for _ in range(batches):
        backend.run({"x": rows})
    return (time.monotonic() - began_s) / batches


def _ask_s(connection: V2Connection, rows: Tensor, batches: int) -> float:
    began_s = time.monotonic()
    for _ in range(batches):
        connection.ask(_MODEL, rows)
    return (time.monotonic() - began_s) / batches


def _save_timed(file: Path, batch_s: float) -> None:
    file.parent.mkdir(parents=True)
    tensors = {"datatype": "FP32", "shape": [1]}
    model = {"inputs": [{"name": "x", **tensors}], "outputs": [{"name": "y", **tensors}], "max_batch_size": 1}
    file.write_text(json.dumps({**model, "latency_ms": {1: batch_s * 1000}}))


def _send(url: str, method: str, path: str, body: str | None = None) -> ServerAnswer:
    parts = urlsplit(url)
    assert parts.hostname is not None
    with closing(HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        return ServerAnswer(response.status, response.read().decode())
