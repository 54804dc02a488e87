"""The process of a worker on a node, for which a small program stands."""

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.gateway.cluster.ray.worker_child import WorkerChild, WorkerOrder, command
from sluice.mps.isolation.launch import module_environment
from tests.support.gateway.processes import alive, until

ORDER = WorkerOrder("edge-0", "n1", "10.0.0.2", "10.0.0.1:6379", "cpu2", 2)
LISTENS = """
import json, os, signal, sys
directory = sys.argv[1]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("it starts", flush=True)
with open(directory + "/new", "w") as file:
    json.dump({"url": "10.0.0.2:4000"}, file)
os.rename(directory + "/new", directory + "/ready.json")
while True:
    signal.pause()
"""


def started(text: str, said: list[str]) -> WorkerChild:
    def make(_: WorkerOrder, directory: Path) -> Sequence[str]:
        return [sys.executable, "-c", text, str(directory)]

    return WorkerChild(ORDER, said.append, make, module_environment())


def test_a_worker_on_cores_has_its_node_its_name_and_a_key_that_others_cannot_read(tmp_path: Path) -> None:
    words = command(
        ORDER._replace(key="secret", cache="/cache", cache_mb=7, options=("--log-level", "debug")), tmp_path
    )
    line = " ".join(words[1:])
    assert "worker --name edge-0 --node n1 --listen 10.0.0.2:0" in line
    assert f"--cores auto:2 --key-file {tmp_path}/key --cache /cache --cache-mb 7 --log-level debug" in line
    assert (tmp_path / "key").read_text() == "secret"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("kind", "partition"),
    [
        ("mig-2g.20gb", {"kind": "mig", "profile": "2g.20gb"}),
        ("mps-100", {"kind": "mps", "share_percent": 100}),
    ],
)
def test_a_worker_on_a_gpu_gets_its_device(tmp_path: Path, kind: str, partition: dict[str, object]) -> None:
    words = command(ORDER._replace(kind=kind, uuid="U-1"), tmp_path)
    assert "--cores" not in words
    written = json.loads((tmp_path / "worker.yaml").read_text())
    assert written == {"partition": {"name": "edge-0", "uuid": "U-1", **partition}}


def test_parts_of_a_gpu_use_the_daemon_of_the_node(tmp_path: Path) -> None:
    part = ORDER._replace(kind="mps-25", uuid="GPU-1")
    command(part._replace(pipes="/run/mps"), tmp_path)
    assert json.loads((tmp_path / "worker.yaml").read_text())["partition"]["pipes"] == "/run/mps"
    with pytest.raises(ValueError, match="start nvidia-cuda-mps-control -d on the node"):
        command(part, tmp_path)


def test_a_worker_listens_and_ends_when_it_is_asked_to() -> None:
    said: list[str] = []
    child = started(LISTENS, said)
    assert child.wait_ready() == ("10.0.0.2:4000", "")
    assert child.ended() is None
    child.end()
    assert child.ended() == "the worker exited with status 0; its output: it starts"
    assert said == ["it starts"]


def test_a_worker_that_does_not_listen_says_why() -> None:
    child = started("print('no core is free'); raise SystemExit(2)", [])
    assert child.wait_ready() == ("", "the worker exited with status 2; its output: no core is free")


def test_a_worker_that_is_not_ready_in_time_is_ended() -> None:
    child = started("import signal; signal.pause()", [])
    assert child.wait_ready(0) == ("", "the worker did not listen within 0 s")
    assert child.ended() == "the worker was killed by SIGTERM"


# An actor that starts a worker, tells the pid of that, and dies.
ACTOR = """
import os, sys
from pathlib import Path
from sluice.gateway.cluster.ray.worker_child import WorkerChild, WorkerOrder
def make(order, directory):
    return [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
said = []
child = WorkerChild(WorkerOrder("edge-0", "n1", "h", sys.argv[1], "cpu1", 1, without_head_s=60), said.append, make)
while not said:
    pass
print(said[0], flush=True)
os._exit(1)
"""


def worker_of_a_dead_actor(head: str) -> int:
    """The pid of a worker whose actor has died."""
    done = subprocess.run(
        [sys.executable, "-c", ACTOR, head], env=module_environment(), capture_output=True, check=False, timeout=30
    )
    return int(done.stdout)


def test_a_worker_ends_with_its_actor_while_the_head_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        pid = worker_of_a_dead_actor(f"127.0.0.1:{head.getsockname()[1]}")
        until(lambda: not alive(pid))


def test_a_worker_goes_on_without_its_actor_until_the_head_answers_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    pid = worker_of_a_dead_actor(f"127.0.0.1:{port}")
    assert alive(pid)
    with socket.create_server(("127.0.0.1", port)):
        until(lambda: not alive(pid))
