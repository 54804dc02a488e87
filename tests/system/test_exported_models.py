"""Models of common exporters: batched rightly, or with a sentence why not, which all parts of the server give alike."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.exported_models import EXPORTS

ROOT = Path(__file__).parents[2]
BATCHED = [name for name, export in EXPORTS.items() if export.rows]

TENSORS = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
"""
BROKEN = "the rows of the batch; set max_batch_size to 0 in config.pbtxt to serve the model without batches"
PYTHON = {
    "py_forgets_rows": (
        "max_batch_size: 8" + TENSORS,
        "def infer(inputs): return {'y': inputs['x'][:3]}",
        f"cannot be loaded: a batch of 4 rows: output 'y' has shape [3, 1], expected 4 in front, {BROKEN}",
    ),
    "py_has_another_datatype": (
        "max_batch_size: 8" + TENSORS,
        "def infer(inputs): return {'y': inputs['x'].astype('f8')}",
        "cannot be loaded: a batch of 1 row: output 'y': expected FP32, got FP64",
    ),
    "py_without_batches": (
        TENSORS,
        "def infer(inputs): return {'y': inputs['x']}",
        "ok, no batches: config.pbtxt has no max_batch_size",
    ),
}
VERDICTS = {name: export.verdict for name, export in EXPORTS.items()} | {
    name: verdict for name, (_, _, verdict) in PYTHON.items()
}

SERVED = [name for name, verdict in VERDICTS.items() if verdict.startswith("ok, ")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exports") / "models"
    for name, export in EXPORTS.items():
        export.save(directory, name)
    for name, (config, code, _) in PYTHON.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config)
        (directory / name / "1" / "model.py").write_text(code)
    return directory


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[GatewayServer]:
    with gateway_server(repository, repository.parent, {"partitions": 1, "strict_readiness": False}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: GatewayServer) -> Iterator[tritonclient.http.InferenceServerClient]:
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        yield client


def test_validate_has_the_verdict_of_each(repository: Path) -> None:
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "validate", str(repository)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    lines = done.stdout.splitlines()
    wrong = []
    for name, verdict in VERDICTS.items():
        about = f"{repository / name}/"
        said = [line for line in lines if line.startswith((f"{name}:1: ", about))]
        if [line.removeprefix(f"{name}:1: ").removeprefix(f"{about}1/model.onnx: ") for line in said] != [verdict]:
            wrong.append((name, said, verdict))
    assert not wrong
    assert done.returncode == 1


def test_the_server_serves_the_same_models(client: tritonclient.http.InferenceServerClient) -> None:
    reasons = {each["name"]: each.get("reason", "") for each in client.get_model_repository_index()}
    assert sorted(name for name, reason in reasons.items() if not reason) == sorted(SERVED)
    for name, verdict in VERDICTS.items():
        assert name in SERVED or verdict.removeprefix("cannot be loaded: ") in reasons[name]


@pytest.mark.parametrize("name", SERVED)
def test_metadata_and_log_say_why_a_model_is_not_batched(
    client: tritonclient.http.InferenceServerClient, server: GatewayServer, name: str
) -> None:
    batching = VERDICTS[name].removeprefix("ok, ")
    noted = ": " in batching
    assert client.get_model_metadata(name).get("properties") == ({"batching": batching} if noted else None)
    assert (f"batching model={name}:1 batching={batching}\n" in server.log.read_text()) is noted


@pytest.mark.parametrize("name", BATCHED)
def test_rows_are_answered_one_by_one(client: tritonclient.http.InferenceServerClient, name: str) -> None:
    export = EXPORTS[name]
    values = np.arange(4 * export.rows, dtype=np.float32).reshape(export.rows, 4)
    tensors = [tritonclient.http.InferInput(each.name, values.shape, "FP32") for each in export.inputs]
    for tensor in tensors:
        tensor.set_data_from_numpy(values)
    expected = values if export.nodes[0].op_type == "Reshape" else 2 * values
    np.testing.assert_array_equal(client.infer(name, tensors).as_numpy("y"), expected)
