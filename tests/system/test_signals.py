"""Signals to a real server: they stop it in every phase, or ask something of it, and nothing else ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.models.processes import STOP_SIGNALS, UNUSED_SIGNALS, process_tree
from tests.support.gateway.processes import alive, children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp
from tests.support.sandbox import may_unshare

REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}]}).encode()
SERVE = (sys.executable, "-m", "sluice.gateway.cli.main", "serve", "--http-port", "0", "--grpc-port", "0")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "models" / "mlp" / "1" / "model.onnx", [64, 8])
    return tmp_path / "models"


def status(server: GatewayServer) -> int:
    return server.request("POST", "/v2/models/mlp/infer", REQUEST)[0]


IN_CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def started(repository: Path, before: Sequence[str] = (), options: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    command = [*before, *SERVE, "--repository", str(repository), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.parametrize("delay_s", [0.1, 0.3, 0.6, 1.0])
def test_a_server_that_still_starts_stops_at_once(repository: Path, delay_s: float) -> None:
    with started(repository) as process:
        time.sleep(delay_s)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    # The interpreter itself may not have come to the first line yet.
    assert process.returncode in (0, -signal.SIGTERM)
    assert b"Traceback" not in errors


@pytest.mark.skipif(not may_unshare("--pid"), reason="this machine lets nobody make a namespace")
def test_process_1_of_a_container_stops_while_it_starts(repository: Path) -> None:
    with started(repository, IN_CONTAINER) as outer:
        until(lambda: bool(children(outer.pid)))
        (server,) = children(outer.pid)
        until(lambda: _handles(server, signal.SIGTERM))
        os.kill(server, signal.SIGTERM)
        outer.communicate(timeout=60)
    assert outer.returncode == 0


LEAVING_MODEL = """
import subprocess


def infer(inputs):
    subprocess.run(["sh", "-c", "true & exec sleep 0.1"])
    subprocess.run(["sh", "-c", "sleep 0.01 &"])
    return {"y": inputs["x"]}
"""


@pytest.mark.skipif(not may_unshare("--pid"), reason="this machine lets nobody make a namespace")
def test_process_1_of_a_container_takes_the_exits_of_what_models_leave_behind(tmp_path: Path) -> None:
    _save_python_model(tmp_path / "models" / "plain", LEAVING_MODEL)
    ready = tmp_path / "ready.json"
    options = ["--partitions", "1", "--ready-file", str(ready)]
    with started(tmp_path / "models", IN_CONTAINER, options) as outer:
        until(ready.exists)
        (first,) = children(outer.pid)
        (gateway,) = children(first)
        workers = children(gateway)
        server = GatewayServer(outer, json.loads(ready.read_text())["http_port"], 0, ready)
        for _ in range(3):
            assert server.request("POST", "/v2/models/plain/infer", ASKED)[0] == 200
        until(lambda: children(first) == [gateway])
        assert children(gateway) == workers
        os.kill(first, signal.SIGTERM)
        outer.communicate(timeout=60)
    assert outer.returncode == 0
    assert not any(map(alive, workers))


def _handles(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(line.startswith("SigCgt:") and int(line.split()[1], 16) >> (number - 1) & 1 for line in lines)


PLAIN_MODEL = "def infer(inputs):\n    return {'y': inputs['x'] + 1}\n"


def test_signals_to_all_processes_of_a_service_cost_nothing(repository: Path, tmp_path: Path) -> None:
    _save_python_model(repository / "plain", PLAIN_MODEL)
    with gateway_server(repository, tmp_path, {"partitions": 1, "front_ends": 1}) as server:
        everyone = [server.process.pid, *_descendants(server.process.pid)]
        for number in (signal.SIGHUP, signal.SIGUSR1, *UNUSED_SIGNALS):
            for pid in everyone:
                os.kill(pid, number)
        assert server.request("POST", "/v2/models/plain/infer", ASKED)[0] == 200
        assert status(server) == 200
        # Those that stop the server end nothing else by themselves.
        for number in STOP_SIGNALS:
            for pid in everyone[1:]:
                os.kill(pid, number)
        assert server.request("POST", "/v2/models/plain/infer", ASKED)[0] == 200
        assert status(server) == 200
        assert [server.process.pid, *_descendants(server.process.pid)] == everyone
        for line in ("signal ignored signal=SIGUSR2", "configuration read again changed=nothing"):
            until(lambda line=line: line in server.log.read_text())  # type: ignore[misc]


def _descendants(pid: int) -> list[int]:
    return [each for each in process_tree(pid) if each != pid]


def test_a_quit_drains(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {"partitions": 1}) as server:
        workers = children(server.process.pid)
        server.process.send_signal(signal.SIGQUIT)
        assert server.process.wait(60) == 0
        assert "drain ended given_up=0" in server.log.read_text()
    assert not any(map(alive, workers))


def test_a_log_file_that_was_moved_away_is_opened_again(repository: Path, tmp_path: Path) -> None:
    log, old = tmp_path / "sluice.log", tmp_path / "sluice.log.1"
    with gateway_server(repository, tmp_path, {"partitions": 1}, ["--log-file", str(log)]) as server:
        assert "server ready" in log.read_text()
        log.rename(old)
        server.process.send_signal(signal.SIGUSR1)
        until(log.exists)
        assert status(server) == 200
    assert "server stopped" in log.read_text()
    assert "server stopped" not in old.read_text()


def test_a_hang_up_reads_configuration_and_repository_again(repository: Path, tmp_path: Path) -> None:
    config: dict[str, object] = {"partitions": 1, "control": "poll", "poll_s": 3600}
    with gateway_server(None, tmp_path, config, [str(repository)]) as server:
        save_mlp(repository / "second" / "1" / "model.onnx", [64, 8])
        settings = tmp_path / "sluice.yaml"
        changed = json.loads(settings.read_text()) | {"drain_timeout_s": 7, "strict": True}
        settings.write_text(json.dumps(changed))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.request("GET", "/v2/models/second/ready")[0] == 200)
        settings.write_text("nonsense: 1")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "the old configuration stays reason=" in server.log.read_text())
        text = server.log.read_text()
        assert "configuration read again changed=drain_timeout_s" in text
        assert "changed keys take effect after a restart keys=strict\n" in text
        assert f"the old configuration stays reason={settings}:1: Object contains unknown field `nonsense`" in text
        assert status(server) == 200


@pytest.mark.parametrize("redirect", ["<&- >&- 2>&-", "</dev/null >/dev/full 2>/dev/full"])
def test_a_server_needs_no_standard_streams(repository: Path, tmp_path: Path, redirect: str) -> None:
    ready = tmp_path / "ready.json"
    command = f'exec "$@" {redirect}'
    arguments = [*SERVE, "--repository", str(repository), "--partitions", "1", "--ready-file", str(ready)]
    # With streams that keep what they cannot write, as they do unless this is set.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(["sh", "-c", command, "sh", *arguments], env=buffered) as process:
        until(ready.exists)
        port = json.loads(ready.read_text())["http_port"]
        server = GatewayServer(process, port, 0, ready)
        assert status(server) == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


MODEL = """
import multiprocessing
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def infer(inputs):
    print("a model may print" * 1000, flush=True)
    forked, program = multiprocessing.Process(target=time.sleep, args=(60,)), subprocess.Popen(["sleep", "60"])
    forked.start()
    forked.terminate()
    program.terminate()
    forked.join(10)
    begun, go_on = Path("{directory}/begun"), Path("{directory}/go-on")
    if inputs["x"].any():
        begun.touch()
        while not go_on.exists():
            time.sleep(0.01)
    return {{"y": inputs["x"] * 0 + (forked.exitcode == program.wait(10) == -15)}}
"""
MODEL_CONFIG = """
backend: "python"
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
"""
ASKED = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()


def _save_python_model(directory: Path, text: str) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(text)
    (directory / "config.pbtxt").write_text(MODEL_CONFIG)


def test_a_python_model_outlives_signals_ends_its_children_and_may_print_to_nobody(tmp_path: Path) -> None:
    _save_python_model(tmp_path / "models" / "slow", MODEL.format(directory=tmp_path))
    ready, log = tmp_path / "ready.json", tmp_path / "server.log"
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*SERVE, "--repository", str(tmp_path / "models"), "--partitions", "1", "--ready-file", str(ready)]
    with log.open("wb") as errors:
        process = subprocess.Popen(arguments, stdout=writer, stderr=errors)
    os.close(writer)
    with process, ThreadPoolExecutor(1) as pool:
        until(ready.exists)
        server = GatewayServer(process, json.loads(ready.read_text())["http_port"], 0, log)
        answer = pool.submit(server.request, "POST", "/v2/models/slow/infer", ASKED)
        until((tmp_path / "begun").exists)
        for pid in (*_descendants(process.pid), process.pid):
            os.kill(pid, signal.SIGTERM)
        (tmp_path / "go-on").touch()
        status, _, body = answer.result(60)
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1.0])
        assert process.wait(60) == 0
