"""The memory that a model is assumed to need on a Triton server."""

import asyncio
from typing import cast

import pytest
from tritonclient.grpc import service_pb2

from sluice.gateway.executors.triton.client import TritonClient
from sluice.gateway.executors.triton.models import TritonModels
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS
from tests.support.triton.fake_server import M, double


class Client:
    """Answers after the given times, of a clock of its own."""

    def __init__(self, times_ms: list[int]) -> None:
        self.now_ns = 0
        self.times_ms = times_ms

    async def is_ready(self, spec: object) -> bool:
        return True

    async def infer(self, message: bytes, timeout_s: float, by_http: bytes) -> bytes:
        self.now_ns += self.times_ms.pop(0) * NS_PER_MS
        answer = await double(service_pb2.ModelInferRequest.FromString(message))
        return cast(bytes, answer.SerializeToString())


@pytest.mark.parametrize(
    ("times_ms", "known_ms"),
    [([9, 3, 1, 2, 5, 4], 3), ([900, 300], 300), ([2, 900], 2), ([900, 2, 300], 2)],
)
def test_a_run_that_is_held_up_is_not_taken_for_what_the_model_takes(times_ms: list[int], known_ms: int) -> None:
    sizes = len(M.menu)
    client = Client(times_ms * sizes)
    models = TritonModels(cast(TritonClient, client), None, {"m:1": M}, lambda: client.now_ns)
    asyncio.run(models.bring_up("m:1"))
    assert models.tables["m:1"] == LatencyTable(tuple((rows, known_ms * NS_PER_MS) for rows in M.menu))
    assert client.times_ms == []
