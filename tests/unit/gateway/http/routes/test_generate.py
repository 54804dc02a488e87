"""The JSON of large responses of the generate extension."""

import asyncio
import threading

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.http.exchange import LARGE_JSON_BYTES
from sluice.gateway.http.routes import generate as generate_routes
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request import InferResponse
from sluice.gateway.protocol.signature import Signature
from sluice.models.pipelines.check import single_model
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec

SPEC = TensorSpec("y", DataType.UINT8, (-1,))
SIGNATURE = Signature(single_model(ModelSpec("m", 1, (SPEC,), (SPEC,), 0)))
WAIT_S = 10.0


def large(released: asyncio.Event) -> InferResponse:
    answer = Answer(Outcome.COMPLETED, release=released.set)
    return InferResponse("", [("y", np.zeros(LARGE_JSON_BYTES + 1, np.uint8))], answer)


@pytest.fixture
def goes_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set by a test while the JSON of a response is being written, which waits for it."""
    event = threading.Event()

    def encode(response: InferResponse, signature: Signature, rules: JsonRules) -> bytes:
        assert event.wait(WAIT_S), "nothing else runs meanwhile"
        return b"{}"

    monkeypatch.setattr(generate_routes, "encode_generated", encode)
    return event


def test_others_are_served_while_a_large_response_is_written(goes_on: threading.Event) -> None:
    async def run() -> None:
        released = asyncio.Event()
        asyncio.get_running_loop().call_soon(goes_on.set)
        assert await generate_routes.encode_apart(large(released), SIGNATURE, JsonRules()) == b"{}"
        assert released.is_set()

    asyncio.run(run())


def test_a_large_response_is_released_once_it_is_written_also_if_its_client_leaves(goes_on: threading.Event) -> None:
    async def run() -> None:
        released = asyncio.Event()
        encoding = asyncio.ensure_future(generate_routes.encode_apart(large(released), SIGNATURE, JsonRules()))
        await asyncio.sleep(0)
        encoding.cancel()
        await asyncio.wait({encoding})
        assert encoding.cancelled()
        assert not released.is_set(), "a thread still reads it"
        goes_on.set()
        await asyncio.wait_for(released.wait(), WAIT_S)

    asyncio.run(run())
