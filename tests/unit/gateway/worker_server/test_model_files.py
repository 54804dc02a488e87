import asyncio
import hashlib
from pathlib import Path

import msgspec
import pytest

from sluice.gateway.worker_protocol.messages import FilePart, FileWanted, RemoteModel
from sluice.gateway.worker_server import model_files as model_files_module
from sluice.gateway.worker_server.model_files import FileLoads, GatewayFiles, ModelFiles, default_cache
from sluice.gateway.worker_server.peers import Peers
from sluice.models.distribution.cache import FilesUnavailable
from sluice.models.distribution.file_set import FileEntry, FileSet, make_file_set
from sluice.models.errors import ConfigError, PartitionError

CONTENTS = b"x" * 700_000


def set_of(contents: bytes) -> FileSet:
    entry = FileEntry("m/1/model.py", len(contents), hashlib.sha256(contents).hexdigest())
    return make_file_set([entry], "m/1/model.py")


def model_of(files: FileSet, key: str = "m:1") -> RemoteModel:
    return RemoteModel(key, "/models/m/1/model.py", "python", (1,), True, files=files)


class Side:
    """A worker server of 1 MiB of cache, and its session; `have` and `failed` are what the session was given."""

    def __init__(self, directory: Path) -> None:
        self.files = ModelFiles(str(directory), 1, Peers(), "127.0.0.1:1")
        self.sent: list[FileWanted] = []
        self.asked = asyncio.Event()
        self.gateway = GatewayFiles(self._send)
        self.have: list[tuple[str, str]] = []
        self.failed: list[tuple[str, str]] = []
        self.ended = asyncio.Event()
        self.loading = FileLoads(self.files, self.gateway, self._have, self._failed)

    def _send(self, wanted: FileWanted) -> None:
        self.sent.append(wanted)
        self.asked.set()

    def _have(self, model: RemoteModel, path: str) -> None:
        self.have.append((model.key, path))
        self.ended.set()

    def _failed(self, model: RemoteModel, reason: str) -> None:
        self.failed.append((model.key, reason))
        self.ended.set()

    async def load(self, contents: bytes, key: str = "m:1") -> None:
        """Load a model, and answer all that is asked."""
        self.ended.clear()
        self.loading.begin(model_of(set_of(contents), key), set_of(contents))
        ended = asyncio.ensure_future(self.ended.wait())
        while not ended.done():
            asked = asyncio.ensure_future(self.asked.wait())
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            self.asked.clear()
            while self.sent:
                wanted = self.sent.pop(0)
                part = contents[wanted.offset : wanted.offset + wanted.nbytes]
                self.gateway.answered(FilePart(wanted.number, part))


def test_a_model_is_there_once_the_gateway_has_sent_its_parts(tmp_path: Path) -> None:
    async def run() -> None:
        side = Side(tmp_path)
        await side.load(CONTENTS)
        (key, path), *others = side.have
        assert (key, others, side.failed, "m:1" in side.loading) == ("m:1", [], [], False)
        await side.files.close()
        paths.append(Path(path))

    paths: list[Path] = []
    asyncio.run(run())
    assert [path.read_bytes() for path in paths] == [CONTENTS]


def test_files_are_held_until_the_worker_has_dropped_the_model(tmp_path: Path) -> None:
    async def run() -> None:
        side = Side(tmp_path)
        for contents in (CONTENTS, b"y" * 200_000):
            await side.load(contents)
        await side.load(b"z" * 600_000, "n:1")
        assert side.failed[0][0] == "n:1"
        assert "all other models in it are in use" in side.failed[0][1]
        side.files.keep_newest("m:1")
        await side.load(b"z" * 600_000, "n:1")
        assert [key for key, _ in side.have] == ["m:1", "m:1", "n:1"]
        await side.load(CONTENTS, "o:1")
        side.files.release("m:1")
        side.files.release("n:1")
        side.files.release("never:1")
        await side.load(CONTENTS, "o:1")
        assert side.have[-1][0] == "o:1"
        await side.files.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a fault of ours")])
def test_a_load_has_an_end_whatever_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def run() -> None:
        side = Side(tmp_path)

        async def ensure(*given: object) -> None:
            raise error

        monkeypatch.setattr(side.files, "ensure", ensure)
        await side.load(CONTENTS)
        ((key, reason),) = side.failed
        assert (key, str(error) in reason, "m:1" in side.loading) == ("m:1", True, False)

    asyncio.run(run())


def test_a_load_that_is_given_up_reports_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        side = Side(tmp_path)
        side.loading.begin(model_of(set_of(CONTENTS)), set_of(CONTENTS))
        await side.asked.wait()
        assert "m:1" in side.loading
        assert side.loading.give_up("m:1")
        assert not side.loading.give_up("m:1")
        await side.load(b"another")
        assert [key for key, _ in side.have] == ["m:1"]
        side.loading.begin(model_of(set_of(CONTENTS)), set_of(CONTENTS))
        side.loading.close()
        assert (len(side.have), side.failed) == (1, [])
        await side.files.close()

    asyncio.run(run())


def test_the_end_of_the_session_ends_its_questions(tmp_path: Path) -> None:
    async def run() -> None:
        side = Side(tmp_path)
        side.loading.begin(model_of(set_of(CONTENTS)), set_of(CONTENTS))
        await side.asked.wait()
        side.gateway.close("the lease is over")
        await side.ended.wait()
        assert side.failed[0][1].endswith("the gateway: 'm/1/model.py': the lease is over")
        side.gateway.answered(FilePart(99, b"late"))
        await side.files.close()

    asyncio.run(run())


def test_a_session_that_cannot_ask_is_a_reason(tmp_path: Path) -> None:
    async def run() -> None:
        def full(wanted: FileWanted) -> None:
            raise PartitionError("too much waits to be sent")

        files = ModelFiles(str(tmp_path), 1, Peers(), "127.0.0.1:1")
        with pytest.raises(FilesUnavailable, match=r"the gateway: 'm/1/model.py': too much waits to be sent"):
            await files.ensure(model_of(set_of(CONTENTS)), set_of(CONTENTS), GatewayFiles(full).ask)
        await files.close()

    asyncio.run(run())


def test_few_peers_are_asked_and_never_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def ask(self: Peers, url: str, wanted: FileWanted) -> FilePart:
        asked.append(url)
        raise PartitionError("it is gone")

    async def run() -> None:
        monkeypatch.setattr(Peers, "ask", ask)
        side = Side(tmp_path)
        peers = ("127.0.0.1:1", *(f"10.0.0.{number}:9001" for number in range(9)))
        model = msgspec.structs.replace(model_of(set_of(b"a")), peers=peers)
        side.loading.begin(model, set_of(b"a"))
        await side.asked.wait()
        assert asked == [f"10.0.0.{number}:9001" for number in range(model_files_module.MOST_PEERS)]
        side.loading.close()
        await side.files.close()

    asyncio.run(run())


def test_a_cache_that_cannot_be_used_is_an_error_if_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache: .*/file cannot be used: .*; expected a directory to write to"):
        ModelFiles(str(tmp_path / "file"), 1, Peers(), "127.0.0.1:1").prepare()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ModelFiles(None, 1, Peers(), "127.0.0.1:1").prepare()
    assert [record.message for record in caplog.records] == ["no models from other machines"]


def test_the_default_place_is_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == Path("/users/ada/.cache/sluice/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/ada")
    assert default_cache() == Path("/var/cache/ada/sluice/models")
