"""Loads and unloads on a real server that are slow, crash, are too big, race each other, or come as it stops."""

import http.client
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer
from tests.system.test_lifecycle import CLIENTS, ask, connect, index, repository, save, serve, traffic

__all__ = ["repository"]

CHANGES = 10
"""The number of changes that each of the racing clients asks for."""
PYTHON = """
backend: "python"
max_batch_size: 4
input [ {name: "x" data_type: TYPE_FP32 dims: [3]} ]
output [ {name: "y" data_type: TYPE_FP32 dims: [3]} ]
"""


def save_timed(repository: Path, name: str, latency_ms: float, size: int = 0) -> None:
    """Save a model whose batches take `latency_ms`, in a file of at least `size` bytes."""
    path = repository / name / "1" / "model.timed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = ({"name": each, "datatype": "FP32", "shape": [3]} for each in "xy")
    model = {"inputs": [x], "outputs": [y], "max_batch_size": 1, "latency_ms": {"1": latency_ms}}
    path.write_text(json.dumps(model).ljust(size))


def save_python(repository: Path, name: str, load: str) -> None:
    """A model in Python whose loading does this."""
    path = repository / name / "1" / "model.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(PYTHON)
    path.write_text(
        f"import os, time\n\ndef load(config):\n    {load}\n\ndef infer(inputs):\n    return {{'y': inputs['x']}}\n"
    )


@contextmanager
def meanwhile() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def load(server: GatewayServer, name: str, protocol: str = "http") -> str:
    """Why a model did not load; "" when it did."""
    with connect(server, protocol) as client:
        try:
            client.load_model(name)
        except InferenceServerException as error:
            return str(error.message())
        return ""


def loading(server: GatewayServer, name: str, or_ready: bool = False) -> bool:
    states = ("LOADING", "READY") if or_ready else ("LOADING",)
    with connect(server) as client:
        return any(entry[0] == name and entry[2] in states for entry in index(client))


def runs(server: GatewayServer) -> bool:
    """True if some worker has a batch."""
    return b"\nsluice_arena_used_bytes 0.0\n" not in server.request("GET", "/metrics")[2]


def asked(server: GatewayServer, change: str) -> http.client.HTTPConnection:
    """A connection on which a change was asked for; what is asked on others from now on comes after it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", f"/v2/repository/models/{change}", b"{}")
    return connection


def refusal(connection: http.client.HTTPConnection) -> tuple[int, str]:
    """Status and message of the answer that comes on a connection, its last one."""
    answer = connection.getresponse()
    message: str = json.loads(answer.read())["error"]
    connection.close()
    return answer.status, message


@pytest.mark.timed
@pytest.mark.behaviour("L0_lifecycle", "unload drains: requests that run are answered", through="http")
def test_what_is_in_flight_ends_before_a_model_goes_and_before_its_worker_is_replaced(
    repository: Path, tmp_path: Path
) -> None:
    save_timed(repository, "slow", 600)

    def late(server: GatewayServer) -> tuple[Any, float]:
        begun = time.monotonic()
        with connect(server) as client:
            return ask(client, "slow"), time.monotonic() - begun

    with meanwhile() as pool, serve(repository, tmp_path, partitions=1, load_models=["slow", "first"]) as server:
        worker = children(server.process.pid)
        for name, recycle in (("first", True), ("slow", False)):
            until(lambda: not runs(server))
            answer = pool.submit(late, server)
            until(lambda: runs(server))
            body = json.dumps({"parameters": {"recycle": recycle}}).encode()
            assert server.request("POST", f"/v2/repository/models/{name}/unload", body)[0] == 200
            y, seconds = answer.result()
            assert y.shape == (1, 3)
            assert seconds < 1.5  # the time that a new worker takes to start is not in it
        assert set(children(server.process.pid)).isdisjoint(worker)
        assert server.log.read_text().count("the worker is being recycled") == 1


def test_of_what_a_worker_is_to_load_only_what_it_was_busy_with_fails_when_it_dies(
    repository: Path, tmp_path: Path
) -> None:
    save_python(repository, "deadly", "time.sleep(600)")
    with meanwhile() as pool, serve(repository, tmp_path, load_models=["first"]) as server:
        deadly = pool.submit(load, server, "deadly")
        until(lambda: loading(server, "deadly"))
        others = [pool.submit(load, server, "both", protocol) for protocol in CLIENTS]
        until(lambda: loading(server, "both", or_ready=True))  # before what would have it wait is asked for
        others += [pool.submit(load, server, "second", protocol) for protocol in CLIENTS]
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        assert deadly.result().endswith("was lost: the worker was killed by SIGKILL")
        assert [other.result() for other in others] == [""] * 4
        with connect(server) as client:
            assert ask(client, "both").shape == (1, 3)
            states = {entry[0]: entry[2] for entry in index(client)}
        assert states == {"both": "READY", "deadly": "UNAVAILABLE", "first": "READY", "second": "READY"}


@pytest.mark.behaviour(
    "L0_lifecycle", "concurrent_model_load_speedup: unrelated models load at the same time", through="http"
)
def test_models_that_have_nothing_to_do_with_each_other_are_loaded_at_a_time(repository: Path, tmp_path: Path) -> None:
    for name, other in (("slow", "other"), ("other", "slow")):
        # Each waits for the other one to load.
        wait = f"while not os.path.exists({str(tmp_path / other)!r}): time.sleep(0.01)"
        save_python(repository, name, f"open({str(tmp_path / name)!r}, 'w').close()\n    {wait}")
    with meanwhile() as pool, serve(repository, tmp_path, partitions=1) as server:
        loads = [pool.submit(load, server, name, protocol) for name in ("slow", "other") for protocol in CLIENTS]
        assert [each.result() for each in loads] == [""] * 4
        assert server.log.read_text().count(": model loaded ") == 2  # the same once, though it was asked for twice


def test_a_reload_never_takes_more_memory_than_there_is(repository: Path, tmp_path: Path) -> None:
    shutil.rmtree(repository)
    save_timed(repository, "large", 1, 6000)
    cores = sorted(os.sched_getaffinity(0))[:2]
    partitions = [{"name": f"p{core}", "cores": [core], "memory_mb": 0.01} for core in cores]
    with serve(repository, tmp_path, partitions=partitions, load_models=["large"]) as server:
        save_timed(repository, "large", 2, 6000)
        with traffic(server, "large"):
            if len(cores) == 2:
                assert load(server, "large") == ""  # one of the two copies makes room
        save_timed(repository, "large", 3, 12_000)
        expected = "no partition has room for the 0.0114 MiB that large:1@2 takes, only for 0.01 MiB"
        assert load(server, "large").endswith(expected)
        save_timed(repository, "other", 3, 5000)
        if len(cores) == 2:
            assert load(server, "other") == ""
        save_timed(repository, "large", 4, 6000)
        for protocol in CLIENTS:
            message = load(server, "large", protocol)
            assert "beside what is served: 0.00" in message
            assert message.endswith("of 0.01 MiB are free")
        with connect(server) as client:
            assert ask(client, "large").shape == (1, 3)


@pytest.mark.behaviour(
    "L0_lifecycle", "shutdown_while_loading: a server that is to stop does not wait for a load", through="http"
)
def test_a_server_that_is_to_stop_does_not_wait_for_a_load(repository: Path, tmp_path: Path) -> None:
    save_python(repository, "endless", "time.sleep(600)")
    # It gives requests longer than this test waits.
    with meanwhile() as pool, serve(repository, tmp_path, load_models=["first"], drain_timeout_s=600) as server:
        workers = children(server.process.pid)
        endless = pool.submit(load, server, "endless", "grpc")
        until(lambda: loading(server, "endless"))
        changes = [asked(server, change) for change in ("endless/load", "endless/unload", "second/load")]
        until(lambda: loading(server, "second"))  # and it has what was asked before
        server.process.send_signal(signal.SIGTERM)
        refusals = [refusal(change) for change in changes]
        assert server.process.wait(60) == 0  # it gives 5 s to the workers, which do not end by themselves
        assert [status for status, _ in refusals] == [503] * 3
        messages = [endless.result(), *(message for _, message in refusals)]
        assert [message.split(": ")[-1] for message in messages] == ["the server is stopping"] * 4
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "never retrieved" not in log
    assert "was destroyed" not in log


@pytest.mark.behaviour(
    "L0_lifecycle", "concurrent_model_load_unload: what was asked last is what is left", through="http"
)
def test_loads_and_unloads_that_race_leave_what_was_asked_last(repository: Path, tmp_path: Path) -> None:
    save(repository, "third", seed=3)
    elsewhere = [save(tmp_path / "elsewhere", str(seed), seed=seed).read_bytes() for seed in range(9)]
    with meanwhile() as pool, serve(repository, tmp_path, load_models=["third"]) as server:

        def change(number: int) -> None:
            choices = random.Random(number)
            with connect(server, choices.choice(list(CLIENTS))) as client:
                for _ in range(CHANGES):
                    name = choices.choice(["first", "second", "both"])
                    if choices.random() < 0.5:
                        new = tmp_path / f"new-{number}.onnx"
                        new.write_bytes(choices.choice(elsewhere))
                        new.replace(repository / "first" / "1" / "model.onnx")
                        client.load_model(name)
                    else:
                        client.unload_model(name, unload_dependents=choices.random() < 0.5)

        with traffic(server, "third"):
            list(pool.map(change, range(4)))
        with connect(server) as client:
            client.load_model("both")
            assert {entry[:3] for entry in index(client)} == {
                (name, "1", "READY") for name in ("both", "first", "second", "third")
            }
            ask(client, "both")
            for name in ("both", "first", "second"):
                client.unload_model(name)
            until(lambda: [entry[0] for entry in index(client) if entry[2] != "UNAVAILABLE"] == ["third"])
        assert "Traceback" not in server.log.read_text()
