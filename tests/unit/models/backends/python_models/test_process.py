"""Models in Python in a process of their own: what they do to it, and what is left of it."""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.models.backends import python
from sluice.models.backends.python import PythonBackend
from sluice.models.backends.python_models.wire import TensorMemory
from sluice.models.errors import BackendFailed
from sluice.models.processes import IMPORT_ROOT
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.gateway.processes import memory_files

CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
}
X = np.array([[1, 2], [3, 4]], np.float32)
TIMEOUT_S = 60

MODEL = """
import os, pathlib, signal, sys

beside = pathlib.Path(__file__)
beside.with_name("pid").write_text(str(os.getpid()))

def infer(inputs):
    x = inputs["x"]
    if x[0, 0] == -1:
        os._exit(7)
    if x[0, 0] == -2:
        left = os.fork()
        if left == 0:
            signal.alarm(60)
            signal.pause()
        beside.with_name("left").write_text(str(left))
        os.kill(os.getpid(), 11)
    if x[0, 0] == -3:
        raise ValueError("minus three")
    if x[0, 0] == -4:
        while True:
            pass
    if x[0, 0] == -5:
        os.fork()
    if x[0, 0] == -6 and os.fork() == 0:
        sys.exit("a child that is done")
    return {"y": x * 2}
"""
FORGER = """
import ctypes, os, socket, sys

import msgspec

wire = int(sys.argv[sys.argv.index("--socket") + 1])

def say(packet):
    socket.socket(fileno=os.dup(wire)).send(packet)

def infer(inputs):
    x = inputs["x"]
    number = int(x[0, 1])
    answer = msgspec.msgpack.encode({"type": "ModelFailed", "number": number, "message": "forged"})
    if x[0, 0] == -1:
        say(answer)
    if x[0, 0] == -2:
        say(b"?")
    if x[0, 0] == -3 and (child := ctypes.CDLL(None).fork()) == 0:  # Python does not know of this child
        say(answer)
        os._exit(0)
    if x[0, 0] == -3:
        os.waitpid(child, 0)
    return {"y": x * 2}
"""


def load(directory: Path, text: str = MODEL, config: dict[str, Any] | None = None) -> PythonBackend:
    path = directory / "model.py"
    path.write_text(text)
    return python.load(str(path), 1, json.dumps(CONFIG | (config or {})))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is waited for however busy the machine is, but where the wait is what is tested."""
    monkeypatch.setattr(python, "RELOAD_WAIT_S", TIMEOUT_S)
    monkeypatch.setattr(python, "END_TIMEOUT_S", TIMEOUT_S)


def pid(directory: Path) -> int:
    return int((directory / "pid").read_text())


def wait_for_end(process: int) -> None:
    """Return when a process has ended; it may be gone already."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(TIMEOUT_S * 1000), "the process is still there"
    finally:
        os.close(descriptor)


def test_a_model_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    backend = load(tmp_path)
    assert pid(tmp_path) != os.getpid()
    assert backend.inputs == (TensorSpec("x", DataType.FP32, (-1, 2)),)
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]
    with pytest.raises(BackendFailed, match=r"^ValueError: minus three \(model\.py:19\)$"):
        backend.run({"x": X * 0 - 3})
    # Not in one piece, and larger than what was there before.
    large = np.zeros((8, 200_000), np.float32)[:, ::100_000]
    assert backend.run({"x": large + 1})["y"].tolist() == [[2, 2]] * 8


def test_the_end_of_a_process_is_the_failure_of_its_batch_alone(tmp_path: Path) -> None:
    backend = load(tmp_path)
    first = pid(tmp_path)
    with pytest.raises(BackendFailed, match=r"^the process of the model exited with status 7$"):
        backend.run({"x": X * 0 - 1})
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]
    assert pid(tmp_path) != first


def test_what_a_process_has_started_does_not_hide_its_end(tmp_path: Path) -> None:
    backend = load(tmp_path)
    with pytest.raises(BackendFailed, match=r"^the process of the model was killed by SIGSEGV$"):
        backend.run({"x": X * 0 - 2})
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("how", [-5, -6])
def test_a_child_that_the_model_forks_answers_nothing(tmp_path: Path, how: int) -> None:
    backend = load(tmp_path)
    assert backend.run({"x": X * 0 + how})["y"].tolist() == [[2 * how] * 2] * 2
    for number in range(20):
        assert backend.run({"x": X + number})["y"].tolist() == (2 * (X + number)).tolist()


def test_a_child_that_is_forked_as_the_model_loads_answers_nothing(tmp_path: Path) -> None:
    backend = load(tmp_path, MODEL + "\nos.fork()\nbeside.with_name('pid').write_text(str(os.getpid()))\n")
    for number in range(20):
        assert backend.run({"x": X + number})["y"].tolist() == (2 * (X + number)).tolist()


@pytest.mark.parametrize(
    ("how", "number", "message"),
    [
        (-1, 0, r"it answered batch 0, expected batch 2"),
        (-1, 1, r"it answered batch 1, expected batch 2"),
        (-1, 3, r"it answered batch 3, expected batch 2"),
        (-2, 2, r"it sent an unreadable message: .*"),
        (-3, 2, r"process \d+ answered in place of process \d+"),
    ],
)
def test_an_answer_that_is_not_to_the_batch_is_refused_and_the_next_batch_gets_its_own(
    tmp_path: Path, how: int, number: int, message: str
) -> None:
    backend = load(tmp_path, FORGER)
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]
    with pytest.raises(BackendFailed, match=rf"^the process of the model is restarted: {message}$"):
        backend.run({"x": np.array([[how, number]], np.float32)})
    assert backend.run({"x": X + 1})["y"].tolist() == [[4, 6], [8, 10]]


def test_a_second_answer_to_a_batch_is_refused_by_the_next_one(tmp_path: Path) -> None:
    backend = load(tmp_path, FORGER)
    with pytest.raises(BackendFailed, match=r"^forged$"):
        backend.run({"x": np.array([[-1, 1]], np.float32)})
    with pytest.raises(BackendFailed, match=r"it answered batch 1, expected batch 2$"):
        backend.run({"x": X})
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]


def test_a_process_that_ends_between_batches_costs_none(tmp_path: Path) -> None:
    backend = load(tmp_path)
    os.kill(pid(tmp_path), signal.SIGKILL)
    wait_for_end(pid(tmp_path))
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module", r"cannot be loaded: ModuleNotFoundError: No module named 'no_such_module' \(model"),
        ("import os; os._exit(3)", r"model\.py: cannot be loaded: its process exited with status 3"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BackendFailed, match=message):
        load(tmp_path, text)


def test_a_model_that_cannot_be_loaded_again_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "RETRY_S", TIMEOUT_S)
    backend = load(tmp_path)
    (tmp_path / "model.py").write_text("raise OSError('no table')")
    with pytest.raises(BackendFailed, match="exited with status 7"):
        backend.run({"x": X * 0 - 1})
    with pytest.raises(BackendFailed, match=r"^the model could not be loaded again: .*OSError: no table"):
        backend.run({"x": X})
    with pytest.raises(BackendFailed, match="could not be restarted; it will be retried soon"):
        backend.run({"x": X})


def test_a_process_that_cannot_be_started_leaves_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what other tests have left
    files = memory_files(os.getpid(), "sluice-python")
    backend = load(tmp_path)
    monkeypatch.setattr(python, "RETRY_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        for value in (-1, 1, 1):
            with pytest.raises(BackendFailed, match=r"^the process of the model cannot be started: .*/no/such/python"):
                backend.run({"x": X * 0 + value})
        assert memory_files(os.getpid(), "sluice-python") == files
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]


def test_batches_do_not_wait_long_for_a_model_that_takes_long_to_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load(tmp_path, MODEL + "\nwhile beside.with_name('wait').exists():\n    pass\n")
    (tmp_path / "wait").touch()
    with pytest.raises(BackendFailed, match="exited with status 7"):
        backend.run({"x": X * 0 - 1})
    monkeypatch.setattr(python, "RELOAD_WAIT_S", 0.0)
    with pytest.raises(BackendFailed, match="the process of the model is being restarted"):
        backend.run({"x": X})
    (tmp_path / "wait").unlink()
    monkeypatch.setattr(python, "RELOAD_WAIT_S", TIMEOUT_S)
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]


def test_a_process_ends_with_its_backend(tmp_path: Path) -> None:
    finishing = "class TritonPythonModel:\n    def finalize(self):\n        beside.with_name('finalized').touch()\n"
    backend = load(tmp_path, MODEL + finishing)
    assert not (tmp_path / "finalized").exists()
    del backend
    assert (tmp_path / "finalized").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid(tmp_path), 0)


def test_a_process_does_not_survive_the_one_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    script = (
        "import numpy as np, sys\nfrom sluice.models.backends import python\n"
        "backend = python.load(sys.argv[1], 1, sys.argv[2])\nprint('loaded', flush=True)\n"
        "backend.run({'x': np.full((1, 2), -4, np.float32)})\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "model.py"), json.dumps(CONFIG)]
    root = IMPORT_ROOT
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": root}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"loaded\n"
        parent.kill()
    wait_for_end(pid(tmp_path))


def test_one_whose_parent_is_gone_before_it_has_begun_ends_too() -> None:
    root = IMPORT_ROOT
    reader, writer = os.pipe()
    os.close(writer)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fds = {"socket": theirs.fileno(), "inputs": reader, "outputs": reader, "life": reader}
        arguments = [f"--{name}={fd}" for name, fd in fds.items()]
        command = [sys.executable, "-P", "-m", "sluice.models.backends.python_models.process", *arguments]
        environment = os.environ | {"PYTHONPATH": root}
        subprocess.run(command, check=True, pass_fds=fds.values(), env=environment, timeout=TIMEOUT_S)
    os.close(reader)


def test_strings_and_tensors_without_elements(tmp_path: Path) -> None:
    text = 'def infer(inputs):\n    return {"y": inputs["x"], "n": inputs["n"]}\n'
    tensors = [
        {"name": "x", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "n", "data_type": "TYPE_INT64", "dims": [-1]},
    ]
    backend = load(tmp_path, text, {"input": tensors, "output": [tensors[0] | {"name": "y"}, tensors[1]]})
    words = np.array([[b"a", b""], ["\xe9", b"\xff"]], np.object_)
    outputs = backend.run({"x": words, "n": np.zeros((2, 0), np.int64)})
    assert outputs["y"].tolist() == [[b"a", b""], [b"\xc3\xa9", b"\xff"]]
    assert outputs["n"].shape == (2, 0)


def test_memory_grows_with_what_is_written() -> None:
    fd = os.memfd_create("test")
    writer, reader = TensorMemory(fd), TensorMemory(os.dup(fd))
    for size in (1, 100_000, 7):
        values = np.arange(size)
        (read,) = reader.read(*writer.write({"x": values})).values()
        assert (read == values).all()
    scalar = reader.read(*writer.write({"a": np.array(3), "b": np.array(True)}))
    assert (scalar["a"].item(), scalar["b"].item()) == (3, True)
    os.close(reader.fd)
    os.close(fd)
