"""Servers with one worker that never refuse: what they cannot answer in time waits, however long.

They are processes of their own, since a thread of the client's process would make the client late. `python -m` runs
one, which prints its URL and serves until its input ends.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.loadgen.v2_server import ANSWER, TENSOR, Reply, server


class _Worker:
    """A worker that takes `service_s` a query, by the clock, so that late timers cost no capacity."""

    def __init__(self, service_s: float) -> None:
        self._service_s = service_s
        self._free_s = 0.0
        self._lock = threading.Lock()

    def take(self) -> float:
        """Give the worker a query; returns the seconds from now until its end."""
        with self._lock:
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s) + self._service_s
            return self._free_s - now_s


def _replies(per_s: float) -> Reply:
    """The replies of a worker that answers `per_s` queries a second, in the order of their arrival."""
    worker = _Worker(1 / per_s)

    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(worker.take())
        writer.write(ANSWER)

    return reply


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, per_s: float) -> None:
        self._worker = _Worker(1 / per_s)

    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        metadata = service_pb2.ModelMetadataResponse(name=request.name)
        metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
        metadata.outputs.add(name="y", datatype="FP32", shape=[-1, 2])
        return metadata

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self._worker.take())
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        answer.outputs.add(name="y", datatype="FP32", shape=[1, 2])
        answer.raw_output_contents.append(TENSOR)
        return answer


@contextmanager
def _grpc_server(per_s: float) -> Iterator[str]:
    serving = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(per_s), serving)
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        serving.stop(None)


@contextmanager
def one_worker_server(protocol: str, per_s: float) -> Iterator[str]:
    """A server over `http` or `grpc` that answers `per_s` queries a second, one after the other; yields its URL."""
    command = [sys.executable, "-m", __name__, protocol, str(per_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def _main(protocol: str, per_s: float) -> None:
    opened = server(_replies(per_s)) if protocol == "http" else _grpc_server(per_s)
    with opened as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]))
