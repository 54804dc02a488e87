import asyncio
import io
import ssl
from pathlib import Path
from typing import BinaryIO

import pytest

from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.worker_protocol.file_parts import FileReader
from sluice.gateway.worker_protocol.messages import KEY_METADATA, SERVICE, FilePart, FileWanted
from sluice.gateway.worker_server import peers as peers_module
from sluice.gateway.worker_server.peers import Peers, fetch_method
from sluice.gateway.worker_server.settings import WorkerTls
from sluice.models.errors import NotFoundError, PartitionError
from tests.support.certificates import certificate

WANTED = FileWanted(3, "d" * 64, "m/1/model.onnx", 1, 3)


def open_file(digest: str, path: str) -> BinaryIO:
    if path != WANTED.path:
        raise NotFoundError("there is no such file")
    return io.BytesIO(b"model")


def ask(peers: Peers, *wanted: FileWanted, tls: ssl.SSLContext | None = None, key: str = "") -> list[FilePart]:
    """The answers of a worker server to these questions."""

    async def run() -> list[FilePart]:
        listener = listen("worker", "127.0.0.1", 0)

        def refusal(method: str, metadata: object) -> str:
            given = dict(metadata)  # type: ignore[call-overload]
            return "" if given.get(KEY_METADATA, "") == key else "the key is wrong"

        server = Http2Server(listener, FrontDoor(budget=Budget(1 << 20)), 1 << 20, refusal, tls)
        server.add_registered_method_handlers(SERVICE, fetch_method(FileReader(open_file)))
        await server.start()
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        try:
            return [await peers.ask(url, each) for each in wanted]
        finally:
            await peers.close()
            await server.stop(0)

    return asyncio.run(run())


def test_a_part_of_a_file_comes_from_a_peer_with_the_key() -> None:
    missing = FileWanted(4, "d" * 64, "other", 0, 1)
    assert ask(Peers("secret"), WANTED, missing, key="secret") == [
        FilePart(3, b"ode"),
        FilePart(4, error="there is no such file"),
    ]
    with pytest.raises(PartitionError, match="UNAVAILABLE: the key is wrong"):
        ask(Peers("wrong"), WANTED, key="secret")


def test_a_part_of_a_file_comes_over_tls_from_a_peer_of_the_same_authority(tmp_path: Path) -> None:
    for name in ("ca", "other"):
        certificate(tmp_path, name)
    certificate(tmp_path, "worker", "ca")
    paths = {name: str(tmp_path / name) for name in ("ca.pem", "other.pem", "worker.pem", "worker.key")}
    context = TlsSettings(paths["worker.pem"], paths["worker.key"], paths["ca.pem"]).ssl_context(("h2",))
    tls = WorkerTls(paths["ca.pem"], paths["worker.pem"], paths["worker.key"])
    assert ask(Peers("", tls), WANTED, tls=context) == [FilePart(3, b"ode")]
    with pytest.raises(PartitionError, match="UNAVAILABLE"):
        ask(Peers("", WorkerTls(paths["other.pem"], paths["worker.pem"], paths["worker.key"])), WANTED, tls=context)
    with pytest.raises(PartitionError, match="its certificates cannot be read"):
        ask(Peers("", WorkerTls("nowhere", "nowhere", "nowhere")), WANTED, tls=context)


def test_addresses_that_are_none_and_answers_that_cannot_be_read_are_errors() -> None:
    async def run() -> None:
        peers = Peers()
        with pytest.raises(PartitionError, match="expected an address HOST:PORT"):
            await peers.ask("unix:/run/docker.sock", WANTED)
        with pytest.raises(PartitionError, match="UNAVAILABLE"):
            await peers.ask("127.0.0.1:1", WANTED)
        await peers.close()

    asyncio.run(run())


def test_a_connection_with_calls_is_not_closed_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MOST_CHANNELS", 1)

    async def run() -> list[FilePart]:
        listener = listen("worker", "127.0.0.1", 0)
        server = Http2Server(listener, FrontDoor(budget=Budget(1 << 20)), 1 << 20, lambda method, metadata: "")
        may_answer, asked = asyncio.Event(), asyncio.Event()

        class Slow(FileReader):
            async def answer(self, wanted: FileWanted) -> FilePart:
                asked.set()
                await may_answer.wait()
                return await super().answer(wanted)

        server.add_registered_method_handlers(SERVICE, fetch_method(Slow(open_file)))
        await server.start()
        peers = Peers()
        under_way = asyncio.ensure_future(peers.ask(f"127.0.0.1:{listener.getsockname()[1]}", WANTED))
        await asked.wait()
        for _ in range(2):
            with pytest.raises(PartitionError, match="UNAVAILABLE"):
                await peers.ask("127.0.0.1:1", WANTED)
        may_answer.set()
        try:
            return [await under_way]
        finally:
            await peers.close()
            await server.stop(0)

    assert asyncio.run(run()) == [FilePart(3, b"ode")]
