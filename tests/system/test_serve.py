"""The command `sluice` as a user runs it."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server, stop
from tests.support.models.onnx_models import save_mlp, save_model, save_variable, value

ROOT = Path(__file__).parents[2]
ROW = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()

CASCADE = """
slo_ms: 60000
stages:
  first: {model: small, inputs: {x: request.x}}
  second:
    model: large
    inputs: {x: request.x}
    when: {stage: first, output: y, below: 1.0}
outputs:
  y: {from: [second.y, first.y]}
"""
ENSEMBLE = """
stages:
  a: {model: small, inputs: {x: request.x}}
  b: {model: large, inputs: {x: request.x}}
  both: {combine: mean, of: [a.y, b.y]}
outputs:
  y: both.y
"""


def sluice(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice.gateway.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)


CHAINED = """
stages:
  a: {model: wide, inputs: {x: request.x}}
  b: {model: wide, inputs: {x: request.z}}
  vote: {combine: mean, of: [a.y, b.y]}
  again: {combine: mean, of: [vote.y, a.y]}
outputs:
  y: again.y
"""


def infer(server: GatewayServer, name: str) -> tuple[int, list[float]]:
    status, _, body = server.request("POST", f"/v2/models/{name}/infer", ROW)
    return status, json.loads(body)["outputs"][0]["data"] if status == 200 else []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    save_mlp(directory / "small" / "1" / "model.onnx", [4, 3], seed=1)
    save_mlp(directory / "large" / "1" / "model.onnx", [4, 8, 3], seed=2)
    for name, text in (("cascade", CASCADE), ("ensemble", ENSEMBLE)):
        (directory / name).mkdir()
        (directory / name / "pipeline.yaml").write_text(text)
    return directory


def test_models_and_pipelines_of_a_repository_answer_alike(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path) as server:
        answers = {}
        for name in ("small", "large", "cascade", "ensemble"):
            status, answers[name] = infer(server, name)
            assert status == 200
    # Nothing is as sure as 1, so every row escalates.
    assert answers["cascade"] == answers["large"] != answers["small"]
    mean = [(small + large) / 2 for small, large in zip(answers["small"], answers["large"], strict=True)]
    assert answers["ensemble"] == pytest.approx(mean, rel=1e-5)


def test_a_broken_model_and_a_broken_pipeline_do_not_stop_the_rest(repository: Path, tmp_path: Path) -> None:
    (repository / "torn" / "1").mkdir(parents=True)
    (repository / "torn" / "1" / "model.onnx").write_bytes(b"not a model")
    (repository / "astray").mkdir()
    (repository / "astray" / "pipeline.yaml").write_text(ENSEMBLE.replace("model: large", "model: absent"))
    with gateway_server(repository, tmp_path) as server:
        assert server.request("GET", "/v2/health/ready")[0] == 200
        assert infer(server, "small")[0] == 200
        for name, reason in (("torn", "model.onnx"), ("astray", "no model 'absent'")):
            status, _, body = server.request("GET", f"/v2/models/{name}")
            assert status == 503
            assert reason in json.loads(body)["error"]
            assert infer(server, name)[0] == 503
        assert "no model 'absent'" in server.log.read_text()


def test_answers_that_cannot_be_joined_fail_their_request_and_no_other(repository: Path, tmp_path: Path) -> None:
    save_variable(repository / "wide" / "1" / "model.onnx")
    (repository / "chained").mkdir()
    (repository / "chained" / "pipeline.yaml").write_text(CHAINED)

    def ask(server: GatewayServer, width: int) -> tuple[int, dict[str, Any]]:
        inputs = [
            {"name": name, "shape": [1, size], "datatype": "FP32", "data": [1] * size}
            for name, size in (("x", 2), ("z", width))
        ]
        status, _, body = server.request("POST", "/v2/models/chained/infer", json.dumps({"inputs": inputs}).encode())
        return status, json.loads(body)

    with gateway_server(repository, tmp_path) as server:
        for _ in range(2):
            status, body = ask(server, 3)
            assert (status, body["error"]) == (
                500,
                "the model failed: stage 'vote': answers of the shapes a.y [1, 2], b.y [1, 3] cannot be joined; "
                "expected equal shapes",
            )
            status, body = ask(server, 2)
            assert (status, body["outputs"][0]["data"]) == (200, [2, 2])
        assert infer(server, "small")[0] == 200


def test_a_full_disk_ends_the_journal_and_not_the_server(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, arguments=["--journal", "/dev/full"]) as server:
        for _ in range(100):
            assert infer(server, "cascade")[0] == 200
        assert stop(server.process) == 0
        log = server.log.read_text()
        assert log.count("the journal cannot be written") == 1
        assert log.count("No space left on device") == 1


def test_a_model_file_is_served_without_any_file_written(tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    with gateway_server(model, tmp_path) as server:
        status, answer = infer(server, "mlp")
        assert (status, len(answer)) == (200, 3)
        assert sum(answer) == pytest.approx(1.0)


def test_the_journal_of_a_run_replays_to_the_same_decisions(repository: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with gateway_server(repository, tmp_path, arguments=["--journal", str(journal)]) as server:
        for name in ("small", "cascade", "ensemble") * 3:
            assert infer(server, name)[0] == 200
        assert stop(server.process) == 0
    replayed = sluice("replay", str(journal))
    assert (replayed.returncode, replayed.stdout) == (
        0,
        f"{journal}: the same decisions in {len(journal.read_text().splitlines()) - 1} steps\n",
    )
    lines = journal.read_text().splitlines()
    altered = next(index for index, line in enumerate(lines) if '"CompleteRequest"' in line)
    lines[altered] = lines[altered].replace('"outcome":"completed"', '"outcome":"completed_late"')
    journal.write_text("\n".join(lines))
    differing = sluice("replay", str(journal))
    assert differing.returncode == 1
    assert f"line {altered + 1}: the decisions differ" in differing.stdout


def test_a_journal_is_never_overwritten_and_none_is_left_by_a_server_that_did_not_start(tmp_path: Path) -> None:
    model, journal = save_mlp(tmp_path / "mlp.onnx", [4, 3]), tmp_path / "journal"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = sluice("serve", str(model), "--http-port", "0", "--grpc-port", port, "--journal", str(journal))
    assert result.returncode == 2
    assert f"sluice: gRPC port 127.0.0.1:{port} cannot be bound: Address already in use\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert not journal.exists()
    journal.write_text("kept")
    result = sluice("serve", str(model), "--journal", str(journal))
    assert (result.returncode, result.stderr) == (
        2,
        f"sluice: the journal {journal} exists already; move it away or name another file\n",
    )
    assert journal.read_text() == "kept"


def test_a_wrong_configuration_is_reported_before_a_missing_repository(tmp_path: Path) -> None:
    config = tmp_path / "sluice.yaml"
    config.write_text("http_port: 70000")
    result = sluice("serve", "--config", str(config))
    assert (result.returncode, result.stderr) == (
        2,
        f"sluice: {config}:1: http_port: expected a port from 0 (any free one) to 65535, got 70000\n",
    )


def test_settings_of_a_model_that_is_not_there_are_refused(repository: Path, tmp_path: Path) -> None:
    config = tmp_path / "sluice.yaml"
    config.write_text("models: {smal: {max_batch_size: 4}}")
    result = sluice("serve", "--repository", str(repository), "--config", str(config))
    assert result.returncode == 2
    assert result.stderr == "sluice: models.smal: there is no model of that name; those served are large, small\n"


def test_validate_names_what_is_broken_and_where(repository: Path) -> None:
    assert sluice("validate", str(repository)).returncode == 0
    pipeline = repository / "cascade" / "pipeline.yaml"
    pipeline.write_text(CASCADE.replace("below: 1.0", "below: 2"))
    result = sluice("validate", str(repository))
    assert result.returncode == 1
    assert f"{pipeline}:8: stages.second.when.below: expected a threshold above 0 and at most 1, got 2" in result.stdout
    assert "small:1: ok" in result.stdout


def test_validate_loads_models_and_takes_files_too(repository: Path, tmp_path: Path) -> None:
    ends = [value("x", DataType.FP32, ["N", 4]), value("y", DataType.FP32, ["N", 3])]
    strange = [helper.make_node("Strange", ["x"], ["y"])]
    path = save_model(repository / "large" / "1" / "model.onnx", strange, ends[:1], ends[1:])
    result = sluice("validate", str(repository))
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"large:1: cannot be loaded: {path}: ONNX Runtime cannot load the model: ")
    assert "Strange" in lines[0]
    assert lines[1:] == [
        "small:1: ok, batches of up to 64",
        "cascade: cannot be served without large:1",
        "ensemble: cannot be served without large:1",
    ]
    good = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    result = sluice("validate", str(good))
    assert (result.returncode, result.stdout) == (0, "mlp:1: ok, batches of up to 64\n")


def test_validate_runs_models_with_sequences_as_sequences(tmp_path: Path) -> None:
    model = tmp_path / "models" / "counter" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    (model.parent.parent / "config.pbtxt").write_text(
        """
        backend: "python" max_batch_size: 2
        input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
        sequence_batching { oldest { max_candidate_sequences: 2 }
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } } }
        """
    )
    model.write_text(
        """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = [{tensor.name(): tensor.as_numpy() for tensor in each.inputs()} for each in requests]
        assert all(each["START"].all() for each in given) and all(each.correlation_id() for each in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each["x"])]) for each in given]
"""
    )
    result = sluice("validate", str(tmp_path / "models"))
    assert (result.returncode, result.stdout) == (0, "counter:1: ok, batches of up to 2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "expected --repository DIR, model files, a triton server in the configuration, or --control"),
        (["serve", "--repository", "/absent"], "/absent: expected a directory, the model repository"),
        (["serve", "/absent.onnx"], "/absent.onnx: no such file or directory; expected a model file, or a model"),
        (["validate", "/absent"], "/absent: no such file or directory; expected a model repository or model"),
        (["replay", "/absent"], "/absent: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(arguments: list[str], message: str) -> None:
    result = sluice(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
