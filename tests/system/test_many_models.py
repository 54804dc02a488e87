"""More models than there is memory for, on a real server: each is loaded when it is asked for, and goes again."""

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_growing, save_mlp

MODELS, HELD = 50, 10
ROW = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 256], "datatype": "FP32", "data": [index / 256 for index in range(256)]}]}
).encode()
WIDTHS = [256, 1024, 10]
MODEL_MB = 1.05
"""Memory of the model of each file, in MiB."""
GROWING_MB = 6
"""Memory that one more model takes at least, in MiB; its file is hardly larger."""


def infer(
    server: GatewayServer, name: str, parameters: dict[str, object] | None = None
) -> tuple[int, dict[str, object]]:
    body = ROW if parameters is None else json.dumps(json.loads(ROW) | {"parameters": parameters}).encode()
    status, _, answer = server.request("POST", f"/v2/models/{name}/infer", body)
    return status, json.loads(answer)


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def said(server: GatewayServer, event: str) -> list[dict[str, object]]:
    """The lines of the log of one kind."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def metric(server: GatewayServer, name: str) -> float:
    """The sum of a metric over its labels."""
    _, _, text = server.request("GET", "/metrics")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines() if line.startswith(name))


def test_50_models_where_10_fit_are_all_served(tmp_path: Path) -> None:
    for seed in range(MODELS):
        save_mlp(tmp_path / "models" / f"m{seed}" / "1" / "model.onnx", WIDTHS, seed)
    size_mb = (tmp_path / "models" / "m0" / "1" / "model.onnx").stat().st_size / (1 << 20)
    assert 1 < size_mb < MODEL_MB
    save_growing(tmp_path / "models" / "growing" / "1" / "model.onnx", GROWING_MB + 1, int(1.2 * 2**20))
    config: dict[str, object] = {
        "partitions": [{"name": "only", "cores": [available_cores()[0]], "memory_mb": HELD * MODEL_MB}],
        "max_batch_size": 4,
        "default_slo_ms": 60_000,
        "residency": {"pinned": ["m7"]},
    }
    generator = random.Random(1)
    names = [f"m{number}" for number in range(MODELS)]
    generator.shuffle(names)
    names += generator.choices(names, weights=[1 / (rank + 1) for rank in range(MODELS)], k=150)
    with gateway_server(tmp_path / "models", tmp_path, config, ["--log-format", "json"]) as server:
        (worker,) = said(server, "worker ready")
        assert isinstance(models := worker["models"], list)
        assert len(models) == HELD
        assert "m7:1" in models
        assert all(server.request("GET", f"/v2/models/{name}/ready")[0] == 200 for name in names[:MODELS])
        pid = int(str(worker["worker"]))
        infer(server, "m7")
        with ThreadPoolExecutor(3) as clients:
            first = list(clients.map(lambda name: infer(server, name), names[:MODELS]))
            early_kib = resident_kib(pid)
            rest = list(clients.map(lambda name: infer(server, name), names[MODELS:]))
        assert Counter(status for status, _ in first + rest) == {200: len(names)}
        # Each model gives its own answer, and the same one whenever it is loaded.
        answers: dict[str, set[str]] = {}
        for name, (_, answer) in zip(names, first + rest, strict=True):
            answers.setdefault(name, set()).add(json.dumps(answer["outputs"]))
        assert all(len(different) == 1 for different in answers.values())
        assert len(set().union(*answers.values())) == MODELS
        loads, unloads = said(server, "model loaded"), said(server, "model unloaded")
        assert MODELS - HELD <= len(loads) == len(unloads)
        assert "m7:1" not in {line["model"] for line in unloads}
        assert (
            metric(server, "sluice_model_loads_total") == metric(server, "sluice_model_evictions_total") == len(loads)
        )
        assert metric(server, "sluice_partition_models") == HELD
        # As many again came and went without leaving memory behind: much less than what the models would take.
        assert resident_kib(pid) - early_kib < 0.5 * (len(rest) / 2) * MODEL_MB * 1024
        # One that takes more than its file has as many others leave.
        row = {"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]}
        status, _, body = server.request("POST", "/v2/models/growing/infer", json.dumps(row).encode())
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [0.5] * 16)
        _, _, report = server.request("GET", "/v2/sluice/partitions")
        taken_mb = {key: size / (1 << 20) for key, size in json.loads(report)["partitions"][0]["models"].items()}
        assert GROWING_MB < taken_mb["growing:1"] < 2 * GROWING_MB
        assert {"m7:1", "growing:1"} <= taken_mb.keys()
        assert sum(taken_mb.values()) <= HELD * MODEL_MB
        assert infer(server, "m0")[0] == 200


def test_what_cannot_be_loaded_in_time_is_refused_at_once_with_the_reason(tmp_path: Path) -> None:
    for seed in range(2):
        save_mlp(tmp_path / "models" / f"m{seed}" / "1" / "model.onnx", WIDTHS, seed)
    config: dict[str, object] = {
        "partitions": [{"name": "only", "cores": [available_cores()[0]], "memory_mb": MODEL_MB}],
        "max_batch_size": 4,
        "default_slo_ms": 60_000,
    }
    with gateway_server(tmp_path / "models", tmp_path, config) as server:
        status, answer = infer(server, "m1", {"slo_ms": 100})
        assert status == 503
        assert "model m1:1 is not loaded: predicted to complete in 1000." in str(answer["error"])
        assert infer(server, "m1")[0] == 200
        assert infer(server, "m0")[0] == 200


def test_pipelines_that_use_a_model_share_its_one_session(tmp_path: Path) -> None:
    save_mlp(tmp_path / "models" / "big" / "1" / "model.onnx", [256, 8192, 2048, 10])
    for number in range(7):
        (tmp_path / "models" / f"p{number}").mkdir()
        (tmp_path / "models" / f"p{number}" / "pipeline.yaml").write_text(
            "stages: {s: {model: big, inputs: {x: request.x}}}\noutputs: {y: s.y}"
        )
    config: dict[str, object] = {"partitions": 1, "max_batch_size": 4}
    with gateway_server(tmp_path / "models", tmp_path, config, ["--log-format", "json"]) as server:
        answers = [infer(server, name) for name in ("big", *(f"p{number}" for number in range(7)))]
        assert [status for status, _ in answers] == [200] * 8
        assert len({json.dumps(answer["outputs"]) for _, answer in answers}) == 1
        (worker,) = said(server, "worker ready")
        assert worker["models"] == ["big:1"]
        # Its weights take 72 MiB: a session for each of eight would take 576.
        assert resident_kib(int(str(worker["worker"]))) < 350 * 1024
