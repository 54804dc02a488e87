"""The models that Triton servers are found to hold when Sluice starts."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.triton import discovery as triton_discovery
from sluice.gateway.executors.triton.discovery import discover
from sluice.models.spec import ModelSpec
from tests.support.triton.fake_server import FakeTriton, M, N, X, Y, serving_fake


def asked(fake: FakeTriton, *servers: TritonSettings) -> triton_discovery.Discovery:
    """The discovered models while the fake server serves, for settings with port 0 in place of its own."""

    async def main() -> triton_discovery.Discovery:
        async with serving_fake(fake) as port:
            there = [TritonSettings(each.name, each.url.replace(":0", f":{port}"), each.models) for each in servers]
            return await asyncio.to_thread(discover, there, lambda _: 8)

    return asyncio.run(main())


def test_the_models_that_are_ready_are_served_with_the_smaller_batch_size() -> None:
    found = asked(FakeTriton(), TritonSettings("t", "127.0.0.1:0"))
    assert found.holds == {"t": ("m:1",)}
    assert found.specs == {"m:1": ModelSpec("m", 1, (X,), (Y,), 8, "python")}


def test_a_model_that_is_named_is_loaded_to_be_known() -> None:
    fake = FakeTriton()
    found = asked(fake, TritonSettings("t", "127.0.0.1:0", ("n",)))
    assert fake.calls == ["load n"]
    assert list(found.specs) == ["n:1"]


def test_a_decoupled_model_is_broken() -> None:
    fake = FakeTriton()
    fake.decoupled = True
    found = asked(fake, TritonSettings("t", "127.0.0.1:0"))
    assert {name: (each.reason, each.unsupported) for name, each in found.broken.items()} == {
        "m": ("triton t: m: a decoupled model may answer more than once, which is not supported", True),
    }


def test_a_server_that_cannot_be_asked_may_hold_what_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_discovery, "CONNECT_TIMEOUT_S", 0)
    monkeypatch.setattr(triton_discovery, "_PAUSE_S", 60)  # for its one try
    server = TritonSettings("away", "127.0.0.1:1", ("m", "z"))
    found = discover([server], lambda _: 8)
    assert found.unreachable["away"].startswith(
        "triton away at 127.0.0.1:1: connection refused; expected the port of Triton's gRPC service"
    )
    assert list(found.may_hold(server, {"m:1": M, "n:1": N})) == ["m:1"]
    assert [each.name for each in found.unknown([server], {"m", "n"})] == ["z"]


def test_a_server_of_something_else_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_discovery, "CONNECT_TIMEOUT_S", 0)
    monkeypatch.setattr(triton_discovery, "_PAUSE_S", 60)  # for its one try
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        answers = threading.Thread(target=other.serve_forever, args=(0.01,))
        answers.start()
        try:
            found = discover([TritonSettings("t", f"127.0.0.1:{other.server_port}")], lambda _: 8)
        finally:
            other.shutdown()
            answers.join()
    assert "the server there does not speak gRPC; expected the port of" in found.unreachable["t"]


class Together(FakeTriton):
    """Is ready for none before all three that wait for it have asked."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = asyncio.Barrier(3)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._waiting.wait()
        return await super().ServerReady(request, context)


def test_servers_are_waited_for_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_discovery, "CONNECT_TIMEOUT_S", 60.0)
    found = asked(Together(), *(TritonSettings(name, "127.0.0.1:0") for name in "abc"))
    assert (found.holds, found.unreachable) == (dict.fromkeys("abc", ("m:1",)), {})
    assert list(found.specs) == ["m:1"]


@pytest.mark.parametrize("url", ["127.0.0.1", "http://127.0.0.1:8001", ":8001", "host:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected a name and a url such as"):
        TritonSettings("t", url)
