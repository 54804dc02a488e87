"""The protocol's rules for a repository that changes, clause by clause, through the real tritonclient."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity
from tests.system.test_lifecycle import ask, connect, index, repository, save, serve

__all__ = ["repository"]


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """The status and the message of what is refused."""
    with pytest.raises(InferenceServerException) as error:
        call()
    return str(error.value.status()).removeprefix("StatusCode."), error.value.message()


def ready(client: Any, name: str) -> list[str]:
    return [version for each, version, state, _ in index(client) if each == name and state == "READY"]


@pytest.mark.behaviour(
    "L0_lifecycle", "model_control: in mode {control} load and unload by clients are refused", through="http grpc"
)
@pytest.mark.parametrize("control", ["none", "poll"])
def test_clients_change_nothing_where_that_is_not_theirs(repository: Path, tmp_path: Path, control: str) -> None:
    with serve(repository, tmp_path, control=control, partitions=1) as server:
        for protocol, status in (("http", "503"), ("grpc", "UNAVAILABLE")):
            with connect(server, protocol) as client:
                for change in (client.load_model, client.unload_model):
                    code, message = refusal(lambda: change("first"))  # noqa: B023
                    assert (code, message.endswith(f"it is {control}")) == (status, True)
                    assert "explicit model load / unload is not allowed if polling is enabled" in message
                assert {entry[:3] for entry in index(client)} == {
                    (name, "1", "READY") for name in ("both", "first", "second")
                }
                metadata = client.get_server_metadata()
                extensions = metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions
                assert "model_repository(unload_dependents)" not in extensions


@pytest.mark.behaviour(
    "L0_lifecycle", "load and unload with wrong names, parameters and files are refused", through="http grpc"
)
def test_what_is_asked_wrongly_is_refused(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    content = save(tmp_path / "elsewhere", "given").read_bytes()
    with serve(repository, tmp_path, partitions=1, load_models=["second"]) as server:
        for protocol, (bad, unknown) in {
            "http": ("400", "404"),
            "grpc": ("INVALID_ARGUMENT", "NOT_FOUND"),
        }.items():
            with connect(server, protocol) as client:
                for name in (" ", "..", ".hidden"):
                    assert refusal(lambda: client.load_model(name))[0] == bad  # noqa: B023
                message = "failed to load 'never', failed to poll from model repository"
                assert refusal(lambda: client.load_model("never")) == (unknown, message)
                for path in (
                    "../outside",
                    "../../outside",
                    str(outside),
                    "1/../../outside",
                    ".",
                    "1/model.onnx/../../..",
                ):
                    code, message = refusal(
                        lambda: client.load_model("given", config="{}", files={f"file:{path}": content})  # noqa: B023
                    )
                    assert (code, message.endswith("inside of the directory of the model")) == (bad, True), path
                code, message = refusal(lambda: client.load_model("first", config="{"))
                assert (code, message.startswith("load failed for model 'first'")) == (bad, True)
                client.unload_model("never")
                assert [entry[0] for entry in index(client) if entry[2] == "READY"] == ["second"]
        assert not outside.exists()
        assert server.request("POST", "/v2/repository/mine/models/first/load", b"{}")[0] == 501
        body = json.dumps({"parameters": {"unload_dependents": 1}}).encode()
        assert server.request("POST", "/v2/repository/models/first/unload", body)[0] == 400
        body = json.dumps({"parameters": {"colour": True}}).encode()
        assert server.request("POST", "/v2/repository/models/first/unload", body)[0] == 400
        assert json.loads(server.request("POST", "/v2/repository/index", b'{"ready": true}')[2]) == [
            {"name": "second", "version": "1", "state": "READY"}
        ]
        check_over_grpc(server)


def check_over_grpc(server: GatewayServer) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        stub = client._client_stub
        found = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True)).models
        assert [(each.name, each.version, each.state) for each in found] == [("second", "1", "READY")]
        for call, request in (
            (stub.RepositoryModelLoad, service_pb2.RepositoryModelLoadRequest),
            (stub.RepositoryModelUnload, service_pb2.RepositoryModelUnloadRequest),
        ):
            with pytest.raises(Exception, match="'repository_name' specification is not supported"):
                call(request(repository_name="mine", model_name="first"))


@pytest.mark.behaviour(
    "L0_lifecycle", "version_policy: latest, specific and all, as versions come and go", through="http"
)
def test_versions_come_and_go_by_the_policy(repository: Path, tmp_path: Path) -> None:
    for version in (2, 10):
        save(repository, "first", version=version, seed=version)
    for other in ("draft", "-1", "0", "007"):
        save(repository / "first", other)
    config = repository / "first" / "config.pbtxt"
    with serve(repository, tmp_path, partitions=1) as server, connect(server) as client:
        for policy, versions in {
            "": ["10"],
            "all {}": ["1", "2", "10"],
            "latest { num_versions: 2 }": ["2", "10"],
            "specific { versions: [1, 10] }": ["1", "10"],
        }.items():
            config.write_text(f"version_policy: {{ {policy} }}" if policy else "max_batch_size: 4")
            client.load_model("first")
            assert ready(client, "first") == versions
        with connect(server, "grpc") as other:
            assert other.is_model_ready("first", "10")
            assert not other.is_model_ready("first", "2")
        config.write_text("version_policy: { specific { versions: [3] } }")
        message = refusal(lambda: client.load_model("first"))[1]
        assert message.startswith("load failed for model 'first'")
        assert ready(client, "first") == ["1", "10"]
        config.write_text("version_policy: { latest { num_versions: 1 } } max_batch_size: 2")
        client.load_model("first")
        until(lambda: client.get_model_config("first")["max_batch_size"] == 2)
        assert ready(client, "first") == ["10"]


@pytest.mark.behaviour(
    "L0_lifecycle", "model_availability: a duplicate name comes back when one of them goes", through="http"
)
def test_a_name_in_two_repositories_is_not_loaded_again_until_it_is_in_one(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "others"
    other.mkdir()
    config = {"repository": [str(repository), str(other)], "control": "explicit", "load_models": ["both"]}
    with gateway_server(None, tmp_path, {**config, "partitions": 1}) as server, connect(server) as client:
        save_identity(other / "first" / "3" / "model.onnx", DataType.FP32, [3])
        assert ready(client, "first") == ["1"]
        code, message = refusal(lambda: client.load_model("first"))
        assert code == "400"
        assert "expected one model or pipeline of that name" in message
        client.load_model("both")  # which has not changed
        assert ready(client, "first") == ["1"]
        ask(client, "both")
        shutil.rmtree(repository / "first")
        client.load_model("first")
        assert ready(client, "first") == ["3"]
        ask(client, "both")


def test_an_ensemble_that_a_new_model_does_not_fit_stays_with_the_old_one(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path, partitions=1, load_models=["both"]) as server, connect(server) as client:
        new = save(tmp_path / "elsewhere", "first", sizes=(3, 5))
        os.replace(new, repository / "first" / "1" / "model.onnx")
        code, message = refusal(lambda: client.load_model("first"))
        assert (code, "load failed for model 'first'" in message, "both" in message) == ("400", True, True)
        assert ask(client, "both").shape == (1, 3)
        assert ask(client, "first").shape == (1, 3)
        (repository / "second" / "1" / "model.onnx").write_bytes(b"no model")
        client.unload_model("both", unload_dependents=True)
        code, message = refusal(lambda: client.load_model("both"))
        assert (code, "second" in message) == ("400", True)
        assert [entry[2] for entry in index(client) if entry[0] == "both"] == ["UNAVAILABLE"]
