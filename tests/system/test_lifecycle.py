"""Models come, change and go on a real server, through the real tritonclient, while other requests run."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.gateway.cli.main import main
from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity, save_mlp

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
COLUMNS = ("name", "version", "state", "reason")
MIB = 1 << 20
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ {name: "x" data_type: TYPE_FP32 dims: [3]} ]
output [ {name: "y" data_type: TYPE_FP32 dims: [3]} ]
ensemble_scheduling { step [
  {model_name: "first" model_version: -1 input_map {key: "x" value: "x"} output_map {key: "y" value: "between"}},
  {model_name: "second" model_version: -1 input_map {key: "x" value: "between"} output_map {key: "y" value: "y"}}
] }
"""


def save(repository: Path, name: str, version: int = 1, seed: int = 0, sizes: tuple[int, ...] = (3, 3)) -> Path:
    """A model whose answers depend on the seed, moved into place at once."""
    path = repository / name / str(version) / "model.onnx"
    return save_mlp(path, sizes, seed)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = tmp_path / "models"
    save(repository, "first", seed=1)
    save(repository, "second", seed=2)
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    return repository


@contextmanager
def serve(repository: Path, tmp_path: Path, **config: Any) -> Iterator[GatewayServer]:
    settings = {"control": "explicit", "partitions": 2, "max_batch_size": 4, "default_slo_ms": 60_000, **config}
    with gateway_server(repository, tmp_path, settings) as server:
        yield server


@contextmanager
def connect(server: GatewayServer, protocol: str = "http") -> Iterator[Any]:
    url = server.http_url if protocol == "http" else server.grpc_url
    with CLIENTS[protocol].InferenceServerClient(url) as client:
        yield client


def ask(client: Any, name: str, version: str = "") -> Any:
    library = tritonclient.http if "http" in type(client).__module__ else tritonclient.grpc
    x = library.InferInput("x", [1, 3], "FP32")
    x.set_data_from_numpy(np.array([[0.1, 0.5, -0.3]], np.float32))
    return client.infer(name, [x], version).as_numpy("y")


def index(client: Any) -> list[tuple[str, ...]]:
    entries = client.get_model_repository_index()
    if not isinstance(entries, list):
        entries = [
            {key: getattr(each, key) for key in ("name", "version", "state", "reason")} for each in entries.models
        ]
    return [tuple(each.get(key, "") for key in ("name", "version", "state", "reason")) for each in entries]


@contextmanager
def traffic(server: GatewayServer, name: str) -> Iterator[list[Any]]:
    """Requests one after the other over both protocols; the answers, none of which may be an error.

    The last answer is to what was asked after the block.
    """
    answers: list[Any] = []
    errors: list[Exception] = []
    answered = dict.fromkeys(CLIENTS, 0)
    stop = threading.Event()

    def run(protocol: str) -> None:
        with connect(server, protocol) as client:
            while not stop.wait(0.005):
                try:
                    answers.append(ask(client, name))
                    answered[protocol] += 1
                except InferenceServerException as error:
                    errors.append(error)

    def go_on() -> None:
        seen = answered.copy()
        until(lambda: all(answered[each] > seen[each] + 5 for each in CLIENTS) or bool(errors))

    threads = [threading.Thread(target=run, args=(protocol,)) for protocol in CLIENTS]
    for thread in threads:
        thread.start()
    try:
        go_on()
        yield answers
        go_on()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.behaviour(
    "L0_lifecycle", "model_control: load, load again, unload, unload what is not there, load what is not there"
)
@pytest.mark.behaviour("L0_lifecycle", "the index: never loaded, READY, and UNAVAILABLE with unloaded")
@pytest.mark.parametrize("protocol", CLIENTS)
def test_models_are_loaded_and_unloaded_by_clients(repository: Path, tmp_path: Path, protocol: str) -> None:
    with serve(repository, tmp_path) as server, connect(server, protocol) as client:
        assert index(client) == [("both", "", "", ""), ("first", "", "", ""), ("second", "", "", "")]
        with pytest.raises(InferenceServerException, match="unknown model: 'first' is not found"):
            ask(client, "first")
        client.load_model("first")
        assert client.is_model_ready("first")
        assert ask(client, "first").shape == (1, 3)
        assert ("first", "1", "READY", "") in index(client)
        client.load_model("first")  # nothing happens
        client.unload_model("first")
        assert not client.is_model_ready("first")
        until(lambda: ("first", "1", "UNAVAILABLE", "unloaded") in index(client))
        with pytest.raises(InferenceServerException, match="has no available versions"):
            ask(client, "first")
        with pytest.raises(InferenceServerException, match="version 1 is not at ready state"):
            ask(client, "first", "1")
        client.unload_model("first")
        client.unload_model("never-heard-of")
        with pytest.raises(InferenceServerException, match="failed to load 'other', failed to poll"):
            client.load_model("other")
        metadata = client.get_server_metadata()
        extensions = metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions
        assert {"model_repository", "model_repository(unload_dependents)"} <= set(extensions)


@pytest.mark.behaviour("L0_lifecycle", "a reload keeps a model available", through="http grpc")
@pytest.mark.behaviour("L0_lifecycle", "a reload that fails keeps the old version, 400 says why", through="http grpc")
def test_a_model_is_reloaded_without_a_gap_and_a_broken_one_changes_nothing(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path, load_models=["first"]) as server, connect(server) as client:
        before = ask(client, "first")
        with traffic(server, "first") as answers:
            save(repository, "first", seed=7)
            client.load_model("first")
            after = ask(client, "first")
        assert not np.allclose(before, after)
        np.testing.assert_allclose(answers[0], before, rtol=1e-5)
        np.testing.assert_allclose(answers[-1], after, rtol=1e-5)
        with traffic(server, "first"):
            (repository / "first" / "1" / "model.onnx").write_bytes(b"no model")
            with pytest.raises(InferenceServerException, match="load failed for model 'first'"):
                client.load_model("first")
        np.testing.assert_allclose(ask(client, "first"), after, rtol=1e-5)
        stats = client.get_inference_statistics("first", "1")["model_stats"][0]
        assert stats["inference_stats"]["fail"]["count"] == 0
        assert stats["inference_count"] >= len(answers)


@pytest.mark.behaviour(
    "L0_lifecycle",
    "model_control_ensemble: an ensemble loads its models, follows a reload, goes with an unload",
    through="http",
)
@pytest.mark.behaviour(
    "L0_lifecycle", "unload_dependents unloads the models of an ensemble, else they stay", through="http"
)
def test_an_ensemble_loads_its_models_follows_them_and_goes_with_them(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path) as server, connect(server) as client:
        client.load_model("both")
        assert {entry[:3] for entry in index(client)} == {
            ("both", "1", "READY"),
            ("first", "1", "READY"),
            ("second", "1", "READY"),
        }
        before = ask(client, "both")
        with traffic(server, "both"):
            save(repository, "second", seed=9)
            client.load_model("second")
            assert not np.allclose(ask(client, "both"), before)
        client.unload_model("second")
        assert not client.is_model_ready("both")
        reasons = {name: reason for name, _, state, reason in index(client) if state == "UNAVAILABLE"}
        assert reasons["both"] == "model 'second', which it needs, was unloaded"
        client.load_model("second")
        assert client.is_model_ready("both")
        client.unload_model("both", unload_dependents=True)
        assert not any(map(client.is_model_ready, ("both", "first", "second")))
        client.load_model("first")
        client.load_model("both")
        client.unload_model("both")
        assert [client.is_model_ready(name) for name in ("both", "first", "second")] == [False, True, True]


@pytest.mark.behaviour("L0_lifecycle", "config and file override of a load")
@pytest.mark.behaviour("L0_lifecycle", "file_override_security: a path may not leave the directory of the model")
@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_client_gives_a_configuration_and_files(repository: Path, tmp_path: Path, protocol: str) -> None:
    with serve(repository, tmp_path) as server, connect(server, protocol) as client:
        client.load_model("first", config=json.dumps({"max_batch_size": 2}))
        config = client.get_model_config("first")
        config = config if isinstance(config, dict) else config.config
        assert (config["max_batch_size"] if isinstance(config, dict) else config.max_batch_size) == 2
        expected = save(tmp_path / "elsewhere", "given", seed=5).read_bytes()
        client.load_model("given", config="{}", files={"file:1/model.onnx": expected})
        assert ask(client, "given").shape == (1, 3)
        client.unload_model("given")
        for name, message in (("file:../model.onnx", "inside of the directory"), ("other", "is unknown")):
            with pytest.raises(InferenceServerException, match=message):
                client.load_model("given", config="{}", files={name: expected})
        with pytest.raises(InferenceServerException):
            client.load_model("given", files={"file:1/model.onnx": expected})
        with pytest.raises(InferenceServerException, match=r"load failed for model 'first': .*max_batch_size"):
            client.load_model("first", config=json.dumps({"max_batch_size": -2}))
        assert client.is_model_ready("first")


@pytest.mark.behaviour("L0_lifecycle", "concurrent_same_model_load: loads of related models take turns", through="http")
def test_loads_of_one_model_are_serialised_and_those_of_others_run_at_once(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path) as server:

        def load(name: str) -> None:
            with connect(server) as client:
                client.load_model(name)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(load, ["first", "both", "second", "first", "both", "second"]))
        with connect(server) as client:
            assert all(map(client.is_model_ready, ("first", "second", "both")))
            assert ask(client, "both").shape == (1, 3)


@pytest.mark.behaviour(
    "L0_lifecycle", "load_new_model_version: the other versions are not loaded again", through="http"
)
def test_a_new_version_leaves_the_others_alone(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path, load_models=["first"]) as server, connect(server) as client:
        with traffic(server, "first"):
            save(repository, "first", version=3, seed=3)
            client.load_model("first")
        assert ("first", "3", "READY", "") in index(client)
        assert server.log.read_text(errors="replace").count("model=first:1@") == 0
        shutil.rmtree(repository / "first" / "1")
        client.load_model("first")
        assert not client.is_model_ready("first", "1")
        assert client.is_model_ready("first", "3")


@pytest.mark.behaviour(
    "L0_lifecycle", "poll: what is new, changed or gone is loaded, loaded again, unloaded", through="http"
)
@pytest.mark.behaviour("L0_lifecycle", "poll: load and unload by clients are refused", through="http")
def test_a_repository_that_is_polled_is_followed(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path, control="poll", poll_s=0.2) as server, connect(server) as client:
        before = ask(client, "first")
        assert client.is_model_ready("both")
        save(tmp_path / "elsewhere", "third", seed=4)
        shutil.move(tmp_path / "elsewhere" / "third", repository / "third")
        until(lambda: bool(client.is_model_ready("third")))
        new = save(tmp_path / "elsewhere", "first", seed=8)
        with traffic(server, "both"):
            new.replace(repository / "first" / "1" / "model.onnx")
            until(lambda: not np.allclose(ask(client, "first"), before))
        shutil.rmtree(repository / "third")
        until(lambda: not client.is_model_ready("third"))
        with pytest.raises(InferenceServerException, match="polling is enabled"):
            client.load_model("first")


@pytest.mark.behaviour(
    "L0_lifecycle", "multiple_model_repository: a name in two of them is UNAVAILABLE", through="http"
)
def test_a_name_in_two_repositories_is_not_served(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "others"
    save_identity(other / "first" / "1" / "model.onnx", DataType.FP32, [3])
    save(other, "alone")
    config = {"control": "none", "repository": [str(repository), str(other)], "partitions": 1}
    with gateway_server(None, tmp_path, config) as server, connect(server) as client:
        assert client.is_model_ready("alone")
        states = {name: (state, reason) for name, _, state, reason in index(client)}
        assert states["first"][0] == "UNAVAILABLE"
        assert states["first"][1].endswith("expected one model or pipeline of that name")


def test_an_unload_with_recycling_gives_all_memory_back(repository: Path, tmp_path: Path) -> None:
    def resident() -> int:
        pids = [each for each in children(server.process.pid) if "sluice.mps.worker." in _read(each, "cmdline")]
        pages = [int(words[1]) for words in (_read(pid, "statm").split() for pid in pids) if words]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    save(repository, "big", sizes=(3, 3000, 3000, 3))
    with serve(repository, tmp_path, load_models=["first"]) as server, connect(server) as client:
        before = resident()
        client.load_model("big")
        loaded = resident()
        assert loaded - before > 60 * MIB  # 36 MB of weights on each of two partitions
        with traffic(server, "first"):
            body = json.dumps({"parameters": {"recycle": True}}).encode()
            status, _, answer = server.request("POST", "/v2/repository/models/big/unload", body)
            assert (status, answer) == (200, b"")
        print(f"RSS of the workers: {before / MIB:.0f} MiB, {loaded / MIB:.0f} with it, {resident() / MIB:.0f} after")
        until(lambda: resident() - before < 12 * MIB)


def _read(pid: int, name: str) -> str:
    """A file of a process; empty once that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_the_command_line_is_a_client_of_it(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(repository, tmp_path) as server:
        url = f"--url=http://{server.http_url}"
        assert main(["model", "load", "first", url]) == 0
        model = save(tmp_path / "elsewhere", "mine", seed=5)
        labels, config = tmp_path / "labels.txt", tmp_path / "config.json"
        labels.write_text("a\nb\nc\n")
        config.write_text(json.dumps({"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}]}))
        files = ["--file", str(model), "--labels", str(labels), "--config", str(config)]
        assert main(["model", "register", "mine", *files, url]) == 0
        large = save(tmp_path / "elsewhere", "plain", sizes=(3, 750, 750, 3))
        assert large.stat().st_size > 2 * MIB
        assert main(["model", "register", "plain", "--file", str(large), url]) == 0
        capsys.readouterr()
        assert main(["model", "list", url]) == 0
        assert capsys.readouterr().out == (
            "name    version  state       reason\n"
            "both             not loaded\n"
            "first   1        READY\n"
            "mine    1        READY\n"
            "plain   1        READY\n"
            "second           not loaded\n"
        )
        assert main(["model", "config", "mine", url]) == 0
        assert json.loads(capsys.readouterr().out)["output"][0]["label_filename"] == "labels.txt"
        assert main(["model", "register", "named", "--file", str(model), "--labels", str(labels), url]) == 0
        with connect(server) as client:
            output = client.get_model_config("named")["output"][0]
            assert (output["name"], output["label_filename"]) == ("y", "labels.txt")
        assert main(["model", "unload", "mine", url]) == 0
        assert main(["model", "load", "nowhere", url]) == 2
        assert "failed to load 'nowhere'" in capsys.readouterr().err
    assert main(["model", "list", "--url=http://127.0.0.1:1"]) == 2
    assert "cannot be reached: [Errno 111] Connection refused" in capsys.readouterr().err
    assert main(["model", "validate", str(repository)]) == 0
    assert capsys.readouterr().out == (
        "first:1: ok, batches of up to 64\nsecond:1: ok, batches of up to 64\nboth: ok, pipeline\n"
    )


def test_without_a_repository_clients_bring_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = save(tmp_path, "mine", seed=5), tmp_path / "notes.onnx"
    text.write_text("not a model")
    with gateway_server(None, tmp_path, {"partitions": 1}, ["--control", "explicit"]) as server:
        url = f"--url=http://{server.http_url}"
        assert main(["model", "register", "mine", "--file", str(model), url]) == 0
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}).encode()
        assert server.request("POST", "/v2/models/mine/infer", body)[0] == 200
        capsys.readouterr()
        assert main(["model", "register", "notes", "--file", str(text), url]) == 2
        reported = capsys.readouterr().err
        assert f"load failed for model 'notes': {text}: " in reported
        assert "sluice-" not in reported
        assert main(["model", "list", url]) == 0
        assert "sluice-" not in capsys.readouterr().out
