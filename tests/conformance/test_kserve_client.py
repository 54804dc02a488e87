"""KServe's own clients, which `make conformance` installs into an environment of their own: every method of them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import gateway_server
from tests.support.models.onnx_models import save_identity

KSERVE_PYTHON = os.environ.get("KSERVE_PYTHON", "")
PROGRAM = Path(__file__).parents[1] / "support" / "kserve_client.py"
TIMEOUT_S = 120

pytestmark = pytest.mark.skipif(not KSERVE_PYTHON, reason="KSERVE_PYTHON names no Python with kserve")

NUMBERS = [["1.0", "2.0", "3.0"]]
SPECIAL = [["1.0", "nan", "inf"]]
TEXTS = [["a", "", "ä"]]
OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}

EXPECTED: dict[str, object] = {
    "v2 is_server_live": True,
    "v2 is_server_ready": True,
    "v2 is_model_ready": True,
    "v2 is_model_ready, unknown": False,
    "v2 infer, fp32": ["fp32", "7", "FP32", [1, 3], SPECIAL],
    "v2 infer, fp16": ["fp16", "7", "FP16", [1, 3], NUMBERS],
    "v2 infer, bytes": ["bytes", "7", "BYTES", [1, 3], TEXTS],
    "v2 infer, bytes in JSON": ["bytes", "7", "BYTES", [1, 3], TEXTS],
    "v2 infer, dict": ["fp32", None, "FP32", [1, 3], NUMBERS],
    "v2 infer, NaN in a JSON answer": ["fp32", "7", "FP32", [1, 3], [["1.0", "nan", "nan"]]],
    "v2 infer, graph": {"model_name": "fp32", "model_version": "1", "outputs": [OUTPUT]},
    "v1 is_server_live": True,
    "v1 is_model_ready": True,
    "v1 infer": {"predictions": [[1, 2, 3]]},
    "grpc is_server_live": True,
    "grpc is_server_ready": True,
    "grpc is_model_ready": True,
    "grpc is_model_ready, unknown": False,
    "grpc infer, fp32": ["fp32", "7", "FP32", [1, 3], SPECIAL],
    "grpc infer, fp16": ["fp16", "7", "FP16", [1, 3], NUMBERS],
    "grpc infer, bytes": ["bytes", "7", "BYTES", [1, 3], TEXTS],
    "grpc infer, bytes in contents": ["bytes", "7", "BYTES", [1, 3], TEXTS],
}
ERRORS = {
    "v2 infer, unknown": "HTTPStatusError: Request for unknown model: 'other' is not found, '404 Not Found'",
    "v1 infer, wrong": "HTTPStatusError: unexpected shape for input 'x' for model 'fp32'. Expected [-1,3], got [1,1]",
    "v1 explain": "HTTPStatusError: 'fp32' has no explainer: ask it with ':predict', '501 Not Implemented'",
}


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("kserve")
    for datatype in (DataType.FP32, DataType.FP16, DataType.BYTES):
        save_identity(directory / "models" / datatype.lower() / "1" / "model.onnx", datatype, [3])
    with gateway_server(directory / "models", directory, {"partitions": 1, "json_nan": "null"}) as server:
        command = [KSERVE_PYTHON, "-P", "-W", "ignore", str(PROGRAM), f"http://{server.http_url}", server.grpc_url]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    results: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return results


@pytest.mark.behaviour("kserve", "{call}", through="kserve")
@pytest.mark.parametrize("call", EXPECTED)
def test_a_method_of_kserves_clients_works(called: dict[str, Any], call: str) -> None:
    assert called[call] == EXPECTED[call]


@pytest.mark.behaviour("kserve", "{call}: an error that says why", through="kserve")
@pytest.mark.parametrize("call", ERRORS)
def test_an_error_reaches_the_user_of_kserves_client(called: dict[str, Any], call: str) -> None:
    assert called[call].startswith(ERRORS[call])


def test_every_call_is_looked_at(called: dict[str, Any]) -> None:
    assert called.keys() == EXPECTED.keys() | ERRORS.keys()
