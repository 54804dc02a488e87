"""Instance groups and other fields of a configuration that change, and warm-up, through the real tritonclient."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity, save_mlp

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
WARM_UP = 'model_warmup {{ name: "w" batch_size: {rows} inputs {{ key: "x" value {{ {given} }} }} }}'
ZEROS = "data_type: TYPE_FP32 dims: 4 zero_data: true"
PICKY = """
import numpy as np

def infer(inputs):
    x = inputs["x"]
    if x.shape[0] == 3 and x.any():
        raise ValueError("three rows are too many")
    return {"y": x}
"""
PICKY_CONFIG = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


class Server(NamedTuple):
    """A server in mode explicit, and its repository."""

    gateway: GatewayServer
    repository: Path

    def connect(self, client: str) -> Any:
        url = self.gateway.http_url if client == "http" else self.gateway.grpc_url
        return CLIENTS[client].InferenceServerClient(url)

    def configure(self, client: str, name: str, config: str) -> dict[str, Any]:
        """Load a model with that config.pbtxt; its configuration then."""
        (self.repository / name / "config.pbtxt").write_text(config)
        with self.connect(client) as connection:
            connection.load_model(name)
        with self.connect("http") as connection:
            reported: dict[str, Any] = connection.get_model_config(name)
        return reported


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("update")
    repository = directory / "models"
    save_mlp(repository / "m" / "1" / "model.onnx", [4, 3])
    save_identity(repository / "half" / "1" / "model.onnx", DataType.FP16, [2])
    (repository / "picky" / "1").mkdir(parents=True)
    (repository / "picky" / "1" / "model.py").write_text(PICKY)
    settings = {"control": "explicit", "partitions": 2, "max_batch_size": 4}
    with gateway_server(repository, directory, settings, ["--load-model", "half"]) as running:
        yield Server(running, repository)


def ask(connection: Any, library: Any) -> Any:
    x = library.InferInput("x", [1, 4], "FP32")
    x.set_data_from_numpy(np.ones((1, 4), np.float32))
    return connection.infer("m", [x]).as_numpy("y")


def group(text: str) -> str:
    return f"instance_group {{ kind: KIND_CPU {text} }}"


@pytest.mark.behaviour("L0_model_update", "add_rm_add_instance: the count of instances goes up and down")
@pytest.mark.parametrize("client", CLIENTS)
def test_the_count_of_instances_is_changed_by_a_load(server: Server, client: str) -> None:
    for count in (1, 2, 1, 8):
        reported = server.configure(client, "m", group(f"count: {count}"))
        assert [each["count"] for each in reported["instance_group"]] == [count]
    log = server.gateway.log.read_text(errors="replace")
    assert "fewer partitions than instances" in log
    assert "model=m:1" in log


@pytest.mark.behaviour("L0_model_update", "rm_instance_to_zero: a count of 0 is the default one", through="http")
@pytest.mark.behaviour("L0_model_update", "instance_name_update: an instance gets another name", through="grpc")
def test_a_count_of_zero_and_names(server: Server) -> None:
    assert server.configure("http", "m", group("count: 0"))["instance_group"][0]["count"] == 2
    assert server.configure("grpc", "m", group("name: 'other'"))["instance_group"][0]["name"] == "other"


@pytest.mark.behaviour(
    "L0_model_update",
    "update_while_inferring: no request fails while the count of instances changes",
    through="http grpc",
    triton="in place, without loading the model again",
)
def test_requests_are_answered_while_instances_change(server: Server) -> None:
    server.configure("http", "m", group("count: 1"))
    answers: list[Any] = []
    errors: list[Exception] = []
    stop = threading.Event()

    def run(client: str) -> None:
        with server.connect(client) as connection:
            while not stop.is_set():
                try:
                    answers.append(ask(connection, CLIENTS[client]))
                except InferenceServerException as error:
                    errors.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in CLIENTS]
    for thread in threads:
        thread.start()
    try:
        for count in (2, 1):
            seen = len(answers)
            server.configure("http", "m", group(f"count: {count}"))
            until(lambda: len(answers) > seen + 5 or bool(errors))  # noqa: B023
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


@pytest.mark.behaviour("L0_model_update", "invalid_config: an update that is refused leaves the model as it was")
@pytest.mark.parametrize("client", CLIENTS)
def test_an_update_that_is_refused_changes_nothing(server: Server, client: str) -> None:
    server.configure(client, "m", group("count: 1"))
    with pytest.raises(InferenceServerException, match=r"load failed for model 'm': .*kind KIND_GPU"):
        server.configure(client, "m", "instance_group { kind: KIND_GPU }")
    with server.connect(client) as connection:
        assert connection.is_model_ready("m")
        assert ask(connection, CLIENTS[client]).shape == (1, 3)


@pytest.mark.behaviour(
    "L0_rate_limiter",
    "resources and priorities of instances have no effect, and the model is served",
    triton="they choose which instance runs next",
)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_model_with_a_rate_limiter_is_served_without_it(server: Server, client: str) -> None:
    server.configure(client, "m", group("rate_limiter { resources { name: 'R' count: 1 } priority: 2 }"))
    with server.connect(client) as connection:
        assert connection.is_model_ready("m")


@pytest.mark.behaviour("L0_warmup", "a model is ready once its warm-up has run, with zeros or random numbers")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_model_is_warmed(server: Server, client: str) -> None:
    warm_ups = [WARM_UP.format(rows=2, given=ZEROS), WARM_UP.format(rows=1, given=ZEROS.replace("zero", "random"))]
    assert len(server.configure(client, "m", " ".join(warm_ups))["model_warmup"]) == 2
    with server.connect(client) as connection:
        assert connection.is_model_ready("m")


@pytest.mark.behaviour("L0_warmup", "a warm-up that fails is a load that fails, and says why")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_warm_up_that_fails_fails_the_load(server: Server, client: str) -> None:
    random = WARM_UP.format(rows=3, given=ZEROS.replace("zero", "random"))
    with pytest.raises(InferenceServerException, match=r"load failed for model 'picky': .*three rows are too many"):
        server.configure(client, "picky", f"{PICKY_CONFIG} {random}")
    server.configure(client, "picky", f"{PICKY_CONFIG} {random.replace('batch_size: 3', 'batch_size: 2')}")
    with server.connect(client) as connection:
        assert connection.is_model_ready("picky")
        connection.unload_model("picky")


@pytest.mark.behaviour("L0_warmup", "a warm-up from a file is refused by name", through="http", triton="run")
def test_a_warm_up_from_a_file_is_refused(server: Server) -> None:
    given = "data_type: TYPE_FP32 dims: 4 input_data_file: 'x'"
    with pytest.raises(InferenceServerException, match=r"model_warmup\.inputs\.input_data_file: not supported"):
        server.configure("http", "m", WARM_UP.format(rows=1, given=given))


@pytest.mark.behaviour("L0_infer", "FP16 in JSON is refused with 400, in both directions", through="http")
def test_half_floats_in_json_are_refused(server: Server) -> None:
    given = b'{"inputs": [{"name": "x", "datatype": "FP16", "shape": [1, 2], "data": [1, 2]}]}'
    status, _, body = server.gateway.request("POST", "/v2/models/half/infer", given)
    assert (status, b"FP16 cannot be given as JSON data; send it as binary data" in body) == (400, True)
    x = tritonclient.http.InferInput("x", [1, 2], "FP16")
    x.set_data_from_numpy(np.ones((1, 2), np.float16))
    wanted = tritonclient.http.InferRequestedOutput("y", binary_data=False)
    with (
        server.connect("http") as connection,
        pytest.raises(
            InferenceServerException, match="'y' is FP16, which JSON cannot carry; ask for it as binary data"
        ),
    ):
        connection.infer("half", [x], outputs=[wanted])
