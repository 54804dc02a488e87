"""Partitions with memory for some of the models only, and families, on a real server."""

import json
from pathlib import Path

import pytest

from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp

ROW = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [i / 64 for i in range(64)]}]}
).encode()
MEMORY_MB = 0.025
"""Room for one of the models, which take 19 kB each."""


def infer(server: GatewayServer, name: str) -> tuple[int, dict[str, object]]:
    status, _, body = server.request("POST", f"/v2/models/{name}/infer", ROW)
    return status, json.loads(body)


def held(server: GatewayServer) -> dict[str, list[str]]:
    """The models that workers hold by the log, by partition."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return {line["partition"]: line["models"] for line in lines if line["event"] == "worker ready"}


@pytest.mark.skipif(len(available_cores()) < 2, reason="two partitions need two cores")
def test_two_partitions_with_room_for_one_model_each_serve_two(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        save_mlp(tmp_path / "models" / name / "1" / "model.onnx", [64, 64, 10], seed)
    first, second = available_cores()[:2]
    partitions = [
        {"name": "left", "cores": [first], "memory_mb": MEMORY_MB},
        {"name": "right", "cores": [second], "memory_mb": MEMORY_MB},
    ]
    with gateway_server(tmp_path / "models", tmp_path, {"partitions": partitions}, ["--log-format", "json"]) as server:
        answers = [infer(server, name) for name in ("one", "two")]
        assert [status for status, _ in answers] == [200, 200]
        assert answers[0][1]["outputs"] != answers[1][1]["outputs"]
        assert held(server) == {"left": ["one:1"], "right": ["two:1"]}


def test_a_model_that_fits_nowhere_is_refused_and_the_rest_served(tmp_path: Path) -> None:
    save_mlp(tmp_path / "models" / "big" / "1" / "model.onnx", [64, 128, 10])
    save_mlp(tmp_path / "models" / "small" / "1" / "model.onnx", [64, 64, 10])
    config: dict[str, object] = {
        "partitions": [{"name": "only", "cores": [available_cores()[0]], "memory_mb": MEMORY_MB}]
    }
    with gateway_server(tmp_path / "models", tmp_path, config) as server:
        assert infer(server, "small")[0] == 200
        status, answer = infer(server, "big")
        assert status == 503
        assert answer["error"] == (
            "'big' cannot be served: model big:1 did not load: no partition has room for the 0.0363 MiB that it takes"
        )


def test_a_plan_finds_a_place_for_a_model_that_was_refused(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        save_mlp(tmp_path / "models" / name / "1" / "model.onnx", [64, 64, 10], seed)
    config: dict[str, object] = {
        "partitions": [{"name": "only", "cores": [available_cores()[0]], "memory_mb": MEMORY_MB}],
        "residency": {"loading": "plan"},
    }
    with gateway_server(tmp_path / "models", tmp_path, config) as server:
        assert infer(server, "one")[0] == 200
        status, answer = infer(server, "two")
        assert (status, answer) == (503, {"error": "the model is not at ready state: no partition holds model two:1"})
        until(lambda: infer(server, "two")[0] == 200)


def test_a_family_answers_by_its_own_name_and_in_a_pipeline(tmp_path: Path) -> None:
    save_mlp(tmp_path / "models" / "small" / "1" / "model.onnx", [64, 10], seed=1)
    save_mlp(tmp_path / "models" / "large" / "1" / "model.onnx", [64, 64, 10], seed=2)
    files = {
        "family": "variants: [{model: small, accuracy: 0.8}, {model: large, accuracy: 0.9}]",
        "pipeline": "stages: {s: {family: family, min_accuracy: 0.85, inputs: {x: request.x}}}\noutputs: {y: s.y}",
    }
    for name, text in files.items():
        (tmp_path / "models" / name).mkdir()
        (tmp_path / "models" / name / f"{name}.yaml").write_text(text)
    with gateway_server(tmp_path / "models", tmp_path) as server:
        outputs = {}
        for name in ("small", "large", "family", "pipeline"):
            status, answer = infer(server, name)
            assert status == 200
            outputs[name] = answer["outputs"]
    assert outputs["pipeline"] == outputs["large"] != outputs["small"]
    assert outputs["family"] in (outputs["small"], outputs["large"])
