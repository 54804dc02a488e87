"""A client in a process of its own that asks pipelines in turns as one request, and as one request for each model.

It waits for each answer. In the second way it passes the answers on, and joins them as the pipeline does.

    python -m sluice.loadgen.papers.engines.chaining_client URL IMAGES.npy PASSES BELOW binary|json
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.target.v2 import decode_output, model_path
from sluice.models.errors import ServingError
from sluice.models.tensors.arrays import datatype_of

Tensor = npt.NDArray[np.float32 | np.uint8]
ENSEMBLE, CASCADE = "ensemble", "cascade"
_TIMEOUT_S = 60.0
_OUTPUT = "y"
_TOLERANCE = 1e-4
"""By which the answers of both ways may differ: a batch of two models' rows is not computed as one of one row is."""


class PassTimes(msgspec.Struct, frozen=True):
    """The times of a pass over all images in ms, by pipeline: of one request, and of one for each model.

    `requests` counts those of the second way, of all images.
    """

    whole: dict[str, list[float]]
    chained: dict[str, list[float]]
    requests: dict[str, int]


class V2Connection:
    """One connection to a V2 server, over which tensors go in binary or, with `as_json`, as numbers in JSON."""

    def __init__(self, url: str, as_json: bool) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        self._as_json = as_json
        self.requests = 0

    def ask(self, model: str, tensor: Tensor) -> Tensor:
        """The answer of a model or pipeline to the tensor `x`."""
        self.requests += 1
        content = tensor.reshape(-1).data.cast("B")
        about: dict[str, object] = {"name": "x", "datatype": datatype_of(tensor.dtype), "shape": tensor.shape}
        if self._as_json:
            head = msgspec.json.encode({"inputs": [{**about, "data": tensor.ravel().tolist()}]})
            body: list[bytes | memoryview] = [head]
            headers = {"Content-Length": str(len(head))}
        else:
            about["parameters"] = {"binary_data_size": len(content)}
            head = msgspec.json.encode({"inputs": [about], "parameters": {"binary_data_output": True}})
            body = [head, content]
            headers = {
                "Inference-Header-Content-Length": str(len(head)),
                "Content-Length": str(len(head) + len(content)),
            }
        self._connection.request("POST", f"{model_path(model)}/infer", body, headers)
        with self._connection.getresponse() as response:
            answer = response.read()
            if response.status != 200:
                raise ServingError(f"{model}: the server answered {response.status} {answer[:200]!r}")
            return cast(
                Tensor, decode_output(answer, int(response.headers.get("Inference-Header-Content-Length", -1)), _OUTPUT)
            )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class ChainingClient:
    """Asks the models of both pipelines one after the other; the cascade goes on `below` a confidence."""

    def __init__(self, server: V2Connection, below: float) -> None:
        self._server = server
        self._below = below

    def ensemble(self, image: Tensor) -> Tensor:
        """The mean of what both models answer to the prepared image."""
        prepared = self._server.ask("prep", image)
        first = self._server.ask("first", prepared)
        second = self._server.ask("second", prepared)
        return np.asarray((first + second) / 2, np.float32)

    def cascade(self, image: Tensor) -> Tensor:
        """The more confident answer of the first model and, where that is not sure, of the second one."""
        prepared = self._server.ask("prep", image)
        first = self._server.ask("first", prepared)
        if first.max() >= self._below:
            return first
        second = self._server.ask("second", prepared)
        return first if first.max() >= second.max() else second


def measure(url: str, images: Path, passes: int, below: float, as_json: bool) -> list[PassTimes]:
    """The times of some passes, of a client in a process of its own; raises `ServingError` with what it said."""
    command = [sys.executable, "-m", "sluice.loadgen.papers.engines.chaining_client", url, str(images)]
    command += [str(passes), repr(below), "json" if as_json else "binary"]
    client = subprocess.run(command, capture_output=True, check=False)
    if client.returncode:
        last = (client.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise ServingError(f"the client of the experiment failed: {last}")
    return msgspec.json.decode(client.stdout, type=list[PassTimes])


def passes(server: V2Connection, images: Tensor, count: int, below: float) -> list[PassTimes]:
    """Ask for each image both ways, in turns the one and the other first, `count` times, after a request of each."""
    chaining = ChainingClient(server, below)
    chains: Mapping[str, Callable[[Tensor], Tensor]] = {ENSEMBLE: chaining.ensemble, CASCADE: chaining.cascade}
    found = []
    for number in range(count + 1):
        times = PassTimes({ENSEMBLE: [], CASCADE: []}, {ENSEMBLE: [], CASCADE: []}, {ENSEMBLE: 0, CASCADE: 0})
        for index in range(len(images) if number else 1):
            image = images[index : index + 1]
            for pipeline, chain in chains.items():
                answers = []
                for is_whole in (True, False) if (number + index) % 2 else (False, True):
                    before, started_ns = server.requests, time.perf_counter_ns()
                    answers.append(server.ask(pipeline, image) if is_whole else chain(image))
                    took_ms = (time.perf_counter_ns() - started_ns) / 1e6
                    (times.whole if is_whole else times.chained)[pipeline].append(took_ms)
                    times.requests[pipeline] += 0 if is_whole else server.requests - before
                if not np.abs(answers[0] - answers[1]).max() <= _TOLERANCE:
                    raise ServingError(f"{pipeline}: image {index} has another answer as one request than in steps")
        if number:
            found.append(times)
    return found


def main(arguments: list[str]) -> None:
    """Measure, and print the times as JSON."""
    url, images, count, below, form = arguments
    server = V2Connection(url, form == "json")
    try:
        times = passes(server, np.load(images), int(count), float(below))
    finally:
        server.close()
    sys.stdout.buffer.write(msgspec.json.encode(times))


if __name__ == "__main__":
    main(sys.argv[1:])
