"""The real tritonclient (http, grpc, and their asyncio variants) against a real server."""

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.arrays import numpy_dtype
from sluice.models.tensors.spec import RAW_ONLY, DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity
from tests.support.models.timed_models import save_timed

SYNC = {"http": tritonclient.http, "grpc": tritonclient.grpc}
AIO = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}

VALUES: dict[DataType, npt.NDArray[Any]] = {
    datatype: np.array([[0, 1, 2], [3, 4, 120]], numpy_dtype(datatype))
    for datatype in DataType
    if datatype is not DataType.BYTES
}
VALUES[DataType.BOOL] = np.array([[True, False, True], [False, False, True]])
VALUES[DataType.FP32] = np.array([[np.nan, np.inf, -np.inf], [0.1, -0.0, 3e38]], np.float32)
VALUES[DataType.UINT64] = np.array([[2**64 - 1, 0, 1], [2, 3, 4]], np.uint64)
VALUES[DataType.BF16] = np.array([[0, 1, -2], [3, 0.5, np.inf]], ml_dtypes.bfloat16)
VALUES[DataType.BYTES] = np.array([[b"", b"a", b"\xc3\xa4"], [b"nul\0nul", b"x" * 70_000, b"z"]], np.object_)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("tritonclient")
    repository = directory / "models"
    for datatype in DataType:
        save_identity(repository / f"identity_{datatype.lower()}" / "1" / "model.onnx", datatype, [3])
    save_timed(repository, "slow", {1: 400}, max_batch_size=1)
    config: dict[str, object] = {
        "max_batch_size": 4,
        "partitions": 1,
        "limits": {"queue_requests": 2},
    }
    with gateway_server(repository, directory, config, ["--allow-client-shm"]) as running:
        yield running


def url(server: GatewayServer, protocol: str) -> str:
    return server.http_url if protocol == "http" else server.grpc_url


def tensor(library: ModuleType, array: npt.NDArray[Any], datatype: str) -> Any:
    given = library.InferInput("x", array.shape, datatype)
    given.set_data_from_numpy(array)
    return given


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(server: GatewayServer, protocol: str) -> Iterator[Any]:
    with SYNC[protocol].InferenceServerClient(url(server, protocol)) as connected:
        yield connected


@pytest.mark.behaviour("L0_http", "health, metadata and readiness, with and without a version")
def test_health_and_metadata(client: Any, protocol: str) -> None:
    def plain(message: Any, *fields: str) -> list[Any]:
        return [message[field] if isinstance(message, dict) else getattr(message, field) for field in fields]

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity_fp32")
    assert client.is_model_ready("identity_fp32", "1")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("identity_fp32", "2")
    name, extensions = plain(client.get_server_metadata(), "name", "extensions")
    assert (name, "binary_tensor_data" in list(extensions)) == ("sluice", True)
    metadata = client.get_model_metadata("identity_fp32")
    assert list(plain(metadata, "versions")[0]) == ["1"]
    (given,) = plain(metadata, "inputs")[0]
    name, datatype, shape = plain(given, "name", "datatype", "shape")
    assert (name, datatype, [int(each) for each in shape]) == ("x", "FP32", [-1, 3])


@pytest.mark.behaviour("L0_infer", "{datatype}, raw: the answer is bit for bit what was sent, and has the id")
@pytest.mark.parametrize("datatype", list(DataType))
def test_every_datatype_comes_back_as_it_went(client: Any, protocol: str, datatype: DataType) -> None:
    values = VALUES[datatype]
    result = client.infer(f"identity_{datatype.lower()}", [tensor(SYNC[protocol], values, datatype)], request_id="r-1")
    np.testing.assert_array_equal(result.as_numpy("y"), values)
    response = result.get_response()
    answered = response["id"] if protocol == "http" else response.id
    assert answered == "r-1"


@pytest.mark.behaviour("L0_infer", "{datatype}, in JSON: the answer is what was sent", through="http")
@pytest.mark.parametrize("datatype", [datatype for datatype in DataType if datatype not in RAW_ONLY])
def test_every_datatype_but_half_floats_comes_back_in_json(server: GatewayServer, datatype: DataType) -> None:
    values = VALUES[datatype]
    given = tritonclient.http.InferInput("x", values.shape, datatype)
    given.set_data_from_numpy(values, binary_data=False)
    wanted = tritonclient.http.InferRequestedOutput("y", binary_data=False)
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        result = client.infer(f"identity_{datatype.lower()}", [given], outputs=[wanted])
    answer = result.as_numpy("y")
    if datatype is DataType.BYTES:
        assert answer.ravel().tolist() == [element.decode() for element in values.ravel()]
    else:
        np.testing.assert_array_equal(answer, values)


@pytest.mark.behaviour("L0_infer", "a version may be named; without an id there is none in the answer")
def test_single_rows_and_versions_and_absent_ids(client: Any, protocol: str) -> None:
    row = VALUES[DataType.INT32][:1]
    result = client.infer("identity_int32", [tensor(SYNC[protocol], row, "INT32")], model_version="1")
    assert result.as_numpy("y").tolist() == [[0, 1, 2]]
    response = result.get_response()
    assert (response.get("id", "") if protocol == "http" else response.id) == ""
    assert (response["model_version"] if protocol == "http" else response.model_version) == "1"


@pytest.mark.behaviour("L0_server_status", "an unknown model is 404, NOT_FOUND")
def test_an_unknown_model_is_not_found(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match="other") as caught:
        client.infer("other", [tensor(SYNC[protocol], VALUES[DataType.INT32], "INT32")])
    assert caught.value.status() == ("404" if protocol == "http" else "StatusCode.NOT_FOUND")


@pytest.mark.behaviour("L0_http", "a full queue is 503, UNAVAILABLE: Exceeds maximum queue size")
def test_overload_is_reported_at_once_and_the_rest_is_served(server: GatewayServer, protocol: str) -> None:
    library = SYNC[protocol]
    row = np.zeros((1, 1), np.float32)

    def infer(_: int) -> str:
        with library.InferenceServerClient(url(server, protocol)) as client:
            try:
                client.infer("slow", [tensor(library, row, "FP32")])
            except InferenceServerException as error:
                return f"{error.status()} {error.message()}"
        return "ok"

    with ThreadPoolExecutor(12) as threads:
        results = list(threads.map(infer, range(12)))
    refused = ("503" if protocol == "http" else "StatusCode.UNAVAILABLE") + " Exceeds maximum queue size"
    assert "ok" in results
    assert len(set(results)) > 1
    assert [result for result in results if result != "ok" and not result.startswith(refused)] == []


@pytest.mark.behaviour("L0_parameters", "custom parameters are passed, and timeout is accepted")
def test_a_client_may_give_an_objective(client: Any, protocol: str) -> None:
    given = [tensor(SYNC[protocol], VALUES[DataType.INT8], "INT8")]
    answer = client.infer("identity_int8", given, parameters={"slo_ms": 50_000}, timeout=50_000_000)
    assert answer.as_numpy("y").tolist() == VALUES[DataType.INT8].tolist()
    with pytest.raises(InferenceServerException, match="'slo_ms'"):
        client.infer("identity_int8", given, parameters={"slo_ms": "soon"})


@pytest.mark.behaviour("L0_infer", "class_count: the largest values as value:index, in order")
def test_an_output_may_be_reported_as_classes(client: Any, protocol: str) -> None:
    library = SYNC[protocol]
    wanted = library.InferRequestedOutput("y", class_count=2)
    given = [tensor(library, np.array([[1, 5, 3], [9, 7, 8]], np.int32), "INT32")]
    answer = client.infer("identity_int32", given, outputs=[wanted])
    assert answer.as_numpy("y").tolist() == [[b"5:1", b"3:2"], [b"9:0", b"8:2"]]


@pytest.mark.behaviour("L0_shared_memory", "inputs and outputs in one region, until it is unregistered")
def test_tensors_go_through_shared_memory(client: Any, protocol: str) -> None:
    library = SYNC[protocol]
    values = VALUES[DataType.FP32]
    key = f"/test-tritonclient-{os.getpid()}-{protocol}"
    region = shm.create_shared_memory_region("tensors", key, 64)
    try:
        shm.set_shared_memory_region(region, [values])
        client.register_system_shared_memory("tensors", key, 64)
        given = library.InferInput("x", values.shape, "FP32")
        given.set_shared_memory("tensors", 24)
        wanted = library.InferRequestedOutput("y")
        wanted.set_shared_memory("tensors", 24, offset=32)
        answer = client.infer("identity_fp32", [given], outputs=[wanted])
        assert answer.get_output("y") is not None
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, values.shape, 32), values)
        client.unregister_system_shared_memory("tensors")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'tensors'"):
            client.infer("identity_fp32", [given])
    finally:
        shm.destroy_shared_memory_region(region)


@pytest.mark.behaviour("L0_data_compression", "{algorithm} of request and response", through="http")
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(server: GatewayServer, algorithm: str) -> None:
    values = np.array([[b"a" * 5000, b"b", b"c"]], np.object_)
    given = [tensor(tritonclient.http, values, "BYTES")]
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        answer = client.infer(
            "identity_bytes",
            given,
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
    assert answer.as_numpy("y").tolist() == values.tolist()


def run_aio(server: GatewayServer, protocol: str, talk: Callable[[Any, ModuleType], Any]) -> Any:
    async def run() -> Any:
        library = AIO[protocol]
        async with library.InferenceServerClient(url(server, protocol)) as client:
            return await talk(client, library)

    return asyncio.run(run())


@pytest.mark.behaviour(
    "L0_http", "python_http_aio: requests at the same time, and one that is refused", through="http.aio grpc.aio"
)
def test_the_asyncio_clients_get_their_own_answers_at_once(server: GatewayServer, protocol: str) -> None:
    async def talk(client: Any, library: ModuleType) -> list[list[list[int]]]:
        assert await client.is_server_ready()
        assert await client.is_model_ready("identity_int64")
        given = [tensor(library, np.full((1 + index % 4, 3), index, np.int64), "INT64") for index in range(2)]
        results = await asyncio.gather(*(client.infer("identity_int64", [each]) for each in given))
        wrong = tensor(library, np.zeros((1, 3), np.float32), "FP32")
        with pytest.raises(InferenceServerException, match="data-type is 'FP32'"):
            await client.infer("identity_int64", [wrong])
        return [result.as_numpy("y").tolist() for result in results]

    assert run_aio(server, protocol, talk) == [[[0, 0, 0]], [[1, 1, 1], [1, 1, 1]]]
