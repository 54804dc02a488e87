import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.in_process.doubling import Done, DoublingServer
from sluice.loadgen.records.record import Status
from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.target.inproc import InProcessTarget
from sluice.loadgen.target.open import open_target
from sluice.models.errors import ConfigError
from tests.unit.loadgen.target.listener import Listener

EXAMPLE = "inproc:examples.in_process.doubling:serve"
REQUESTS = {k: TargetRequest("double", {"x": np.full((k + 1, 4), k, np.float32)}) for k in range(3)}


def test_the_example_answers_every_query_with_its_own_rows() -> None:
    async def run() -> tuple[InProcessTarget, Listener]:
        target, listener = InProcessTarget(EXAMPLE), Listener()
        metadata = await target.metadata("double")
        assert [tensor.name for tensor in (*metadata.inputs, *metadata.outputs)] == ["x", "y"]
        await target.prepare(REQUESTS, listener, keep_answers=True)
        for query in range(9):
            target.issue(query, query % 3)
        assert listener.ended == {}
        await listener.wait(9)
        await target.close()
        return target, listener

    target, listener = asyncio.run(run())
    for query, ended in listener.ended.items():
        assert ended.status is Status.OK
        expected = np.full((query % 3 + 1, 4), 2 * (query % 3), np.float32)
        assert (target.decode(ended.answer, "y") == expected).all()
    with pytest.raises(ConfigError, match="--output z: not in the answers; they have y"):
        target.decode(listener.ended[0].answer, "z")


def test_cancelled_queries_and_those_beyond_the_bound_have_no_answer() -> None:
    async def run() -> Listener:
        target, listener = InProcessTarget(EXAMPLE, max_outstanding=3), Listener()
        await target.prepare(REQUESTS, listener, keep_answers=False)
        for query in range(5):
            target.issue(query, 0)
        target.cancel(1)
        target.cancel(1)
        await listener.wait(5)
        await target.close()
        return listener

    listener = asyncio.run(run())
    statuses = [listener.ended[query].status for query in range(5)]
    assert statuses == [Status.OK, Status.CANCELLED, Status.OK, Status.DROPPED, Status.DROPPED]


def test_a_model_that_the_server_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match="--model m: no model 'm'; expected 'double'"):
        asyncio.run(InProcessTarget(EXAMPLE).metadata("m"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("inproc:examples", "--target: expected inproc:module:factory, got inproc:examples"),
        ("inproc:no.such:serve", "--target inproc:no.such:serve: No module named 'no'"),
        ("inproc:examples:serve", "--target inproc:examples:serve: examples has no function serve"),
    ],
)
def test_a_factory_that_cannot_be_found_is_named(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        open_target(url, connections=1)


def test_what_a_factory_returns_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_server.py").write_text(
        "class Half:\n    def start(self): ...\n\n\ndef serve():\n    return Half()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=r"its server has no metadata, prepare, submit, cancel, stop$"):
        asyncio.run(InProcessTarget("inproc:half_a_server:serve").metadata("m"))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def serve(:", r"badserver cannot be imported: SyntaxError\(.*"),
        ("def serve():\n    return 1 // 0\n", r"the factory failed: ZeroDivisionError\(.*"),
    ],
)
def test_a_factory_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "badserver.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "badserver", raising=False)
    with pytest.raises(ConfigError, match=f"^--target inproc:badserver:serve: {message}$"):
        asyncio.run(InProcessTarget("inproc:badserver:serve").metadata("m"))


@pytest.mark.parametrize("method", ["start", "metadata", "prepare"])
def test_a_method_that_fails_before_the_run_is_named(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("weights")

    async def run() -> None:
        target = InProcessTarget(EXAMPLE)
        await target.metadata("double")
        await target.prepare(REQUESTS, Listener(), keep_answers=False)

    monkeypatch.setattr(DoublingServer, method, fail)
    with pytest.raises(
        ConfigError, match=rf"^--target {EXAMPLE}: its server's {method} failed: KeyError\('weights'\)$"
    ):
        asyncio.run(run())


def test_a_call_that_ends_with_an_unknown_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(server: DoublingServer, request: object, done: Done, explain: bool) -> object:
        done("fine", {}, "", "")
        return None

    async def run() -> Listener:
        target, listener = InProcessTarget(EXAMPLE), Listener()
        await target.prepare(REQUESTS, listener, keep_answers=False)
        target.issue(0, 0)
        await target.close()
        return listener

    monkeypatch.setattr(DoublingServer, "submit", submit)
    (ended,) = asyncio.run(run()).ended.values()
    assert ended.status is Status.ERROR
    assert ended.reason == "the server ended a call with 'fine'; expected one of ok, shed, error"


def test_headers_need_a_server_behind_a_socket() -> None:
    with pytest.raises(ConfigError, match=f"--header: requires a target .*, got {EXAMPLE}"):
        open_target(EXAMPLE, connections=1, headers=[("key", "value")])
