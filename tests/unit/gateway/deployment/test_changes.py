"""The served models change as clients ask for it."""

import asyncio
import errno
import json
import os
import re
from pathlib import Path

import pytest

from sluice.batcher.interface.events import PartitionLost, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.server_config import ModelControlMode
from sluice.gateway.deployment.override import read_override
from sluice.gateway.management.repository_api import RepositoryApi
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.submission import Submission
from sluice.models.errors import (
    BackendUnavailable,
    ModelNotFound,
    RejectedError,
    RequestError,
    ServingError,
    UnsupportedRequest,
)
from tests.support.gateway.processes import until
from tests.unit.gateway.deployment.deployer_bench import TABLE, Served, served
from tests.unit.gateway.deployment.test_deployer import save

CASCADE = """
stages:
  small: {model: m, inputs: {x: request.x}}
  large: {model: n, inputs: {x: request.x}, when: {stage: small, output: y, below: 0.5}}
outputs: {y: {from: [large.y, small.y]}}
"""


async def busy(gateway: Served) -> Submission:
    """Load m, and have a request to it run until the executor is to finish."""
    await gateway.deployer.load("m")
    await gateway.settle()
    gateway.executor.hold = True
    submission = gateway.runtime.submit("m:1@1", {}, RequestOptions((), 1, "", 0, 10**10))
    await gateway.settle()
    return submission


@served
async def test_a_model_is_served_from_its_load_to_its_unload(gateway: Served, repository: Path) -> None:
    await gateway.deployer.load("m")
    assert gateway.registry.pipeline("m", "").key == "m:1@1"
    assert gateway.index == [("m:1", "READY", "")]
    await gateway.deployer.load("m")  # it has not changed
    assert gateway.executor.orders == ["load m:1@1"]
    await gateway.deployer.load("m", always=True)
    await gateway.settle()
    now = gateway.registry.pipeline("m", "").key
    assert gateway.executor.orders == ["load m:1@1", f"load {now}", "unload m:1@1"]
    await gateway.deployer.unload("m")
    await gateway.settle()
    assert gateway.executor.orders[3:] == [f"unload {now}"]
    assert gateway.index == [("m:1", "UNAVAILABLE", "unloaded")]
    with pytest.raises(ModelNotFound, match="'m' has no available versions"):
        gateway.registry.pipeline("m", "")
    assert (gateway.scheduler.dispatcher.models, gateway.executor.known) == ({}, set())
    await gateway.deployer.unload("m")
    with pytest.raises(ModelNotFound, match="failed to load 'x', failed to poll from model repository"):
        await gateway.deployer.load("x")


@served
async def test_a_model_of_a_kind_that_is_not_served_is_reported_as_such(gateway: Served, repository: Path) -> None:
    save(repository, "many")
    config = repository / "many" / "config.pbtxt"
    config.write_text('backend: "timed" model_transaction_policy { decoupled: true }')
    with pytest.raises(RequestError, match=r"load failed for model 'many': .*decoupled: not supported"):
        await gateway.deployer.load("many")
    with pytest.raises(UnsupportedRequest, match="expected it with backend python"):
        gateway.registry.pipeline("many", "")
    config.unlink()
    await gateway.deployer.load("many")
    assert gateway.registry.pipeline("many", "").key.startswith("many:1")


@served
async def test_what_did_not_load_is_known_until_it_is_unloaded(gateway: Served, repository: Path) -> None:
    gateway.executor.broken.add("m")
    with pytest.raises(RequestError, match="load failed for model 'm': "):
        await gateway.deployer.load("m")
    ((name, state, _),) = gateway.index
    assert (name, state) == ("m:", "UNAVAILABLE")
    await gateway.deployer.unload("m")
    assert gateway.index == []
    with pytest.raises(ModelNotFound, match="'m' is not found"):
        gateway.registry.pipeline("m", "")
    gateway.executor.broken.clear()
    await gateway.deployer.load("m")
    gateway.executor.broken.add("m")
    save(repository, "m", latency_ms=2.5)
    with pytest.raises(RequestError, match="load failed for model 'm': "):
        await gateway.deployer.load("m")
    assert gateway.index == [("m:1", "READY", "")]


@served
async def test_a_client_that_asks_for_a_load_gets_one_of_what_has_changed_or_else_of_all(
    gateway: Served, repository: Path
) -> None:
    save(repository, "m", version=1)
    save(repository, "m", version=2)
    await gateway.deployer.load("m")
    save(repository, "m", version=2, latency_ms=2.5)
    await gateway.deployer.load("m", always=True)
    assert gateway.executor.orders[2:] == ["load m:2@2"]
    await gateway.settle()
    del gateway.executor.orders[:]
    await asyncio.gather(*(gateway.deployer.load("m", always=True) for _ in range(3)))
    await gateway.settle()
    assert sorted(order.partition("@")[0] for order in gateway.executor.orders) == [
        "load m:1",
        "load m:2",
        "unload m:1",
        "unload m:2",
    ]


@served
async def test_the_revision_before_is_unloaded_when_its_last_request_is_done(gateway: Served, repository: Path) -> None:
    submission = await busy(gateway)
    save(repository, "m", latency_ms=2.5)
    await gateway.deployer.load("m")
    await gateway.settle()
    assert gateway.registry.pipeline("m", "").key == "m:1@2"
    assert gateway.executor.orders == ["load m:1@1", "load m:1@2"]
    gateway.executor.finish()
    assert (await submission.future).outcome.answered
    await gateway.settle()
    assert gateway.executor.orders[-1] == "unload m:1@1"
    assert gateway.executor.known == {"m:1@2"}


@served
async def test_a_model_that_was_unloaded_is_known_until_the_requests_that_wait_for_a_worker_are_done(
    gateway: Served, repository: Path
) -> None:
    await gateway.deployer.load("m")
    await gateway.settle()
    report = gateway.runtime.report
    report(PartitionLost("cpu0", "killed by SIGKILL"))
    submission = gateway.runtime.submit("m:1@1", {}, RequestOptions((), 1, "", 0, 10**10))
    await gateway.deployer.unload("m")
    await gateway.settle()
    assert not submission.future.done()
    assert "m:1@1" in gateway.executor.known
    report(PartitionReady("cpu0", {"m:1@1": TABLE}))
    assert (await submission.future).outcome is Outcome.COMPLETED
    await gateway.settle()
    assert (gateway.scheduler.dispatcher.models, gateway.executor.known) == ({}, set())


@served
async def test_what_does_not_load_leaves_everything_as_it_was(gateway: Served, repository: Path) -> None:
    await gateway.deployer.load("p")
    save(repository, "m", latency_ms=2.5)
    gateway.executor.broken.add("m")
    with pytest.raises(RequestError, match="load failed for model 'm': it is broken"):
        await gateway.deployer.load("m")
    await gateway.settle()
    assert gateway.keys == ["m:1@1", "p:1@1"]
    assert gateway.executor.known == {"m:1@1", "p:1@1"}
    gateway.executor.broken.clear()
    save(repository, "m", output="z")
    with pytest.raises(RequestError, match=r"load failed for model 'm': .*pipeline\.yaml:\d+: outputs\.y"):
        await gateway.deployer.load("m")
    assert gateway.index == [("m:1", "READY", ""), ("p:1", "READY", "")]
    (repository / "n" / "1" / "model.timed.json").write_text("[]")
    with pytest.raises(RequestError, match="load failed for model 'n'"):
        await gateway.deployer.load("n")
    assert gateway.index[1][:2] == ("n:", "UNAVAILABLE")


@served
async def test_a_pipeline_goes_with_its_model_and_returns_with_it(gateway: Served, repository: Path) -> None:
    await gateway.deployer.load("p")
    assert gateway.index == [("m:1", "READY", ""), ("p:1", "READY", "")]
    await gateway.deployer.unload("m")
    await gateway.settle()
    assert gateway.index == [
        ("m:1", "UNAVAILABLE", "unloaded"),
        ("p:1", "UNAVAILABLE", "model 'm', which it needs, was unloaded"),
    ]
    await gateway.deployer.load("m")
    await gateway.settle()
    assert gateway.keys == ["m:1@2", "p:1@2"]
    await gateway.deployer.unload("p", with_dependencies=True)
    await gateway.settle()
    assert [state for _, state, _ in gateway.index] == ["UNAVAILABLE", "UNAVAILABLE"]


@served
async def test_a_model_that_is_to_report_more_is_loaded_again_with_what_needs_it(
    gateway: Served, repository: Path
) -> None:
    await gateway.deployer.load("p")
    await gateway.deployer.load("n")
    (repository / "cascade").mkdir()
    (repository / "cascade" / "pipeline.yaml").write_text(CASCADE)
    await gateway.deployer.load("cascade")
    await gateway.settle()
    assert gateway.keys == ["cascade:1@3", "m:1@3", "n:1@2", "p:1@3"]
    assert gateway.executor.orders == ["load m:1@1", "load n:1@2", "load m:1@3", "unload m:1@1"]


@served
async def test_an_override_is_in_force_until_the_next_load(gateway: Served, repository: Path) -> None:
    await gateway.deployer.load("m", read_override({"config": json.dumps({"max_batch_size": 2})}))
    assert gateway.registry.pipeline("m", "").max_batch_size == 2
    await gateway.deployer.load("m")
    assert gateway.registry.pipeline("m", "").max_batch_size == 4
    content = (repository / "m" / "1" / "model.timed.json").read_bytes()
    await gateway.deployer.load("given", read_override({"config": "{}", "file:1/model.timed.json": content}))
    assert gateway.registry.pipeline("given", "1").key == "given:1@3"
    await gateway.deployer.load("given")  # it has not changed
    assert gateway.registry.pipeline("given", "1").key == "given:1@3"
    override = gateway.deployer.dependencies.served["given"].override
    assert override is not None
    assert override.entry is not None
    await gateway.deployer.unload("given")
    await gateway.settle()
    entry = override.entry
    await asyncio.to_thread(until, lambda: not entry.exists())  # a thread removes it
    with pytest.raises(ModelNotFound, match="failed to load 'given', failed to poll from model repository"):
        await gateway.deployer.load("given")


@served
async def test_changes_of_names_that_have_to_do_with_each_other_take_turns(gateway: Served, repository: Path) -> None:
    await asyncio.gather(*(gateway.deployer.load(name) for name in ("p", "m", "n", "p", "m")))
    await gateway.settle()
    assert sorted(gateway.executor.orders) == ["load m:1@1", "load n:1@2"]
    assert [name for name, _, _ in gateway.index] == ["m:1", "n:1", "p:1"]


@served
async def test_a_reload_that_there_is_no_room_for_beside_what_is_served_is_refused_with_numbers(
    gateway: Served, repository: Path
) -> None:
    tight = Served(repository, memory_bytes=3000)
    save(repository, "m", size=2000)
    await tight.deployer.load("m")
    save(repository, "m", latency_ms=2.5, size=2000)
    reason = "no partition has room for the 0.00191 MiB of m:1@2 beside what is served: 0.000954 MiB of 0.00286 MiB are"
    with pytest.raises(RejectedError, match=f"^load failed for model 'm': {re.escape(reason)} free$"):
        await tight.deployer.load("m")
    assert tight.index == [("m:1", "READY", "")]
    save(repository, "n", size=4000)
    with pytest.raises(
        RequestError, match=r"no partition has room for the 0\.00381 MiB that n:1@3 takes, only for 0\.00286"
    ):
        await tight.deployer.load("n")


@served
async def test_what_a_stopping_server_was_asked_for_is_refused(gateway: Served, repository: Path) -> None:
    gateway.executor.slow = True
    waiting = [asyncio.create_task(gateway.deployer.load(name)) for name in ("m", "m", "n")]
    await gateway.executor.ordered.wait()
    gateway.deployer.close()
    for each in waiting:
        with pytest.raises(RejectedError, match="the server is stopping"):
            await each
    await gateway.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(RejectedError, match="the server is stopping"):
        await gateway.deployer.unload("m")


@served
async def test_a_load_that_is_given_up_leaves_nothing_behind(gateway: Served, repository: Path) -> None:
    gateway.executor.slow = True
    waiting = asyncio.create_task(gateway.deployer.load("m"))
    await gateway.executor.ordered.wait()
    assert gateway.index == [("m:1", "LOADING", "")]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gateway.index == [("m:", "UNAVAILABLE", "loading was cancelled")]
    gateway.executor.slow = False
    await gateway.deployer.load("n")
    await gateway.deployer.load("m")
    assert gateway.index == [("m:1", "READY", ""), ("n:1", "READY", "")]


@served
async def test_a_load_that_cannot_even_begin_leaves_nothing_behind(gateway: Served, repository: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway.executor, "add", broken)
        with pytest.raises(RuntimeError, match="out of order"):
            await gateway.deployer.load("p")
    await gateway.settle()
    assert gateway.index == [("p:", "UNAVAILABLE", "out of order")]
    await gateway.deployer.load("p")
    assert gateway.index == [("m:1", "READY", ""), ("p:1", "READY", "")]


def broken(*arguments: object) -> None:
    raise RuntimeError("out of order")


@served
async def test_an_unload_that_nobody_waits_for_any_more_still_ends(gateway: Served, repository: Path) -> None:
    await busy(gateway)
    waiting = asyncio.create_task(gateway.deployer.unload("m", recycle=True))
    await gateway.settle()
    assert gateway.index == [("m:1", "UNLOADING", "")]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gateway.executor.finish()
    await gateway.settle()
    assert gateway.index == [("m:1", "UNAVAILABLE", "unloaded")]
    assert gateway.executor.known == set()


@served
async def test_memory_that_does_not_return_in_time_is_reported_and_returns_later(
    gateway: Served, repository: Path
) -> None:
    await busy(gateway)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.gateway.deployment.deployer.RECYCLE_TIMEOUT_S", 0)
        with pytest.raises(ServingError, match="'m' is unloaded, but its memory was not freed within 0 s"):
            await gateway.deployer.unload("m", recycle=True)
    gateway.executor.finish()
    await gateway.settle()
    assert gateway.index == [("m:1", "UNAVAILABLE", "unloaded")]
    assert gateway.executor.known == set()


@served
async def test_a_caller_that_waits_for_an_unload_learns_that_the_server_stops(
    gateway: Served, repository: Path
) -> None:
    await busy(gateway)
    waiting = asyncio.create_task(gateway.deployer.unload("m", recycle=True))
    await gateway.settle()
    gateway.deployer.close()
    with pytest.raises(RejectedError, match="the server is stopping"):
        await waiting


@served
async def test_a_model_is_held_by_as_many_partitions_as_it_asks_for(gateway: Served, repository: Path) -> None:
    two = Served(repository, memory_bytes=2500, count=2)
    for name in ("k", "m", "n"):
        save(repository, name, size=1000)
    (repository / "m" / "config.pbtxt").write_text("instance_group [ { count: 2 kind: KIND_CPU } ]")
    for name in ("k", "n"):
        await two.deployer.load(name)
        await two.settle()
    await two.deployer.load("m")
    assert two.executor.orders.count("load m:1@3") == 2


@pytest.mark.parametrize("name", ["m" * 300, "m\0", "a/b", ".m", "", " ", "m\n"])
def test_what_no_model_can_be_named_is_refused(name: str) -> None:
    refused(name, {}, "': expected the name of a model: up to 255 letters, digits, ")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["1/" + "f" * 300], "the files of 'm' cannot be stored: .*File name too long"),
        (["1", "1/model.py"], "the files of 'm' cannot be stored: .*File exists"),
        (["1/model.py", "1"], "the files of 'm' cannot be stored: .*Is a directory"),
    ],
)
def test_files_that_cannot_be_kept_are_refused(files: list[str], reason: str) -> None:
    refused("m", {"config": "{}", **{f"file:{each}": b"content" for each in files}}, reason)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_files_that_this_machine_has_no_room_for_are_not_the_client_s_fault(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    reason = f"the files of 'm' cannot be stored on the server: .*{os.strerror(number)}; its TMPDIR must name a "
    refused("m", {"config": "{}", "file:1/model.onnx": b"content"}, reason, BackendUnavailable)


def refused(name: str, parameters: dict[str, object], reason: str, error: type[ServingError] = RequestError) -> None:
    async def main() -> None:
        gateway = Served()
        api = RepositoryApi(gateway.registry, gateway.deployer, ModelControlMode.EXPLICIT, allow_upload=True)
        with pytest.raises(error, match=reason):
            await api.load("", name, parameters)
        gateway.deployer.close()
        gateway.runtime.close()

    asyncio.run(main())
