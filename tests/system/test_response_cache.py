"""A real server answers from its cache what it was asked before, over both protocols."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from sluice.gateway.cli.main import main
from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

CACHED = "max_batch_size: 4 response_cache { enable: true }"
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4 response_cache { enable: true }
input { name: "a" data_type: TYPE_FP32 dims: 3 }
output { name: "b" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling { step {
  model_name: "plain" model_version: -1
  input_map { key: "x" value: "a" } output_map { key: "y" value: "b" }
} }
"""
KNOWN = ENSEMBLE.replace("response_cache { enable: true }", "").replace("plain", "cached")
STEPS = """
platform: "ensemble" max_batch_size: 4
input { name: "a" data_type: TYPE_STRING dims: 1 }
output { name: "b" data_type: TYPE_STRING dims: 1 }
output { name: "c" data_type: TYPE_STRING dims: 1 }
ensemble_scheduling { step [
  { model_name: "counter" model_version: -1
    input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } },
  { model_name: "text" model_version: -1
    input_map { key: "x" value: "b" } output_map { key: "y" value: "c" } }
] }
"""
COUNTING = """
backend: "python" max_batch_size: 4 response_cache { enable: true }
input { name: "x" data_type: TYPE_STRING dims: 1 }
output { name: "y" data_type: TYPE_STRING dims: 1 }
"""
COUNTER = """
runs = 0

def infer(inputs):
    global runs
    runs += 1
    return {"y": inputs["x"] + f" {runs}".encode()}
"""

SLOW_COUNTER = COUNTER.replace("    global runs\n", "    import time; time.sleep(0.5)\n    global runs\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("cache")
    repository = directory / "models"
    for name in ("cached", "plain"):
        save_identity(repository / name / "1" / "model.onnx", DataType.FP32, [3])
    (repository / "cached" / "config.pbtxt").write_text(CACHED)
    save_identity(repository / "text" / "1" / "model.onnx", DataType.BYTES, [1])
    for name, text in (
        *(("whole", ENSEMBLE), ("known", KNOWN), ("counter", COUNTING), ("steps", STEPS)),
        ("slow", COUNTING),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    (repository / "counter" / "1" / "model.py").write_text(COUNTER)
    (repository / "slow" / "1" / "model.py").write_text(SLOW_COUNTER)
    with gateway_server(repository, directory, {"partitions": 1}, ["--cache-bytes", "10000"]) as running:
        yield running


def infer(server: GatewayServer, protocol: str, model: str, name: str, values: Any, **options: Any) -> Any:
    library = tritonclient.http if protocol == "http" else tritonclient.grpc
    url = server.http_url if protocol == "http" else server.grpc_url
    with library.InferenceServerClient(url) as client:
        tensor = library.InferInput(name, values.shape, "BYTES" if values.dtype == object else "FP32")
        tensor.set_data_from_numpy(values)
        return client.infer(model, [tensor], **options)


def counts(server: GatewayServer, model: str) -> tuple[int, ...]:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        (entry,) = client.get_inference_statistics(model)["model_stats"]
    stats = entry["inference_stats"]
    return (
        *(stats[each]["count"] for each in ("success", "queue", "cache_hit", "cache_miss")),
        entry["inference_count"],
        entry["execution_count"],
    )


@pytest.mark.behaviour("L0_response_cache", "hits and misses are counted, hits are no executions", through="http grpc")
def test_an_answer_is_given_again_over_either_protocol_and_to_those_who_want_classes(server: GatewayServer) -> None:
    row = np.array([[1, 3, 2]], np.float32)
    for protocol in ("http", "grpc", "http"):
        assert infer(server, protocol, "cached", "x", row).as_numpy("y").tolist() == [[1, 3, 2]]
    wanted = [tritonclient.http.InferRequestedOutput("y", class_count=1)]
    classes = infer(server, "http", "cached", "x", row, outputs=wanted).as_numpy("y")
    assert classes.tolist() == [[b"3.000000:1"]]
    assert infer(server, "grpc", "cached", "x", row + 1).as_numpy("y").tolist() == [[2, 4, 3]]
    assert counts(server, "cached") == (5, 5, 3, 2, 2, 2)
    _, _, metrics = server.request("GET", "/metrics")
    assert b'nv_cache_num_hits_per_model{model="cached",version="1"} 3\n' in metrics
    assert b'sluice_requests_total{outcome="completed",pipeline="cached:1"} 5' in metrics


@pytest.mark.behaviour("L0_response_cache", "ensemble: a hit of the whole skips its models", through="http")
def test_an_ensemble_is_cached_as_a_whole(server: GatewayServer) -> None:
    row = np.array([[5, 6, 7]], np.float32)
    for _ in range(2):
        assert infer(server, "http", "whole", "a", row).as_numpy("b").tolist() == [[5, 6, 7]]
    assert counts(server, "whole") == (2, 2, 1, 1, 1, 1)
    assert counts(server, "plain") == (1, 1, 0, 0, 1, 1)


@pytest.mark.behaviour("L0_response_cache", "ensemble: its models are looked up one by one", through="http grpc")
def test_a_step_whose_model_is_cached_is_run_once(server: GatewayServer) -> None:
    words = np.array([["über".encode()], [b"all"]], np.object_)
    first = infer(server, "http", "steps", "a", words)
    again = infer(server, "grpc", "steps", "a", words)
    assert first.as_numpy("c").tolist() == first.as_numpy("b").tolist() == again.as_numpy("c").tolist()
    assert again.as_numpy("b").tolist() == first.as_numpy("b").tolist()  # each run counts on
    # What a step has made is known to requests to its model, and the other way round.
    assert infer(server, "http", "counter", "x", words).as_numpy("y").tolist() == first.as_numpy("b").tolist()
    alone = infer(server, "grpc", "counter", "x", words[:1]).as_numpy("y").tolist()
    assert infer(server, "http", "steps", "a", words[:1]).as_numpy("b").tolist() == alone
    assert alone != first.as_numpy("b").tolist()[:1]
    assert counts(server, "steps") == (3, 3, 0, 0, 5, 3)
    assert counts(server, "counter") == (5, 5, 3, 2, 3, 2)
    assert counts(server, "text") == (3, 3, 0, 0, 5, 3)


@pytest.mark.behaviour("L0_response_cache", "a full cache makes room for what is new", through="grpc")
def test_what_was_wanted_least_lately_makes_room(server: GatewayServer) -> None:
    def answer(word: str) -> str:
        result = infer(server, "grpc", "counter", "x", np.array([[word.encode()]], np.object_)).as_numpy("y")
        return str(result.item().decode())

    # The model was run when it was warmed, too.
    first = answer("a")
    assert answer("a") == first
    # An entry takes 1 kB and a little more: nine of them fill the cache.
    others = [answer(f"b{number}") for number in range(9)]
    assert len({*others, first}) == 10
    assert answer("b8") == others[8]
    assert answer("a") != first


def test_equal_requests_that_are_under_way_run_once(server: GatewayServer) -> None:
    word = np.array([[b"same"]], np.object_)
    with ThreadPoolExecutor(8) as threads:
        asked = [("http", "grpc")[number % 2] for number in range(8)]
        answers = list(threads.map(lambda protocol: infer(server, protocol, "slow", "x", word).as_numpy("y"), asked))
    assert len({answer.item() for answer in answers}) == 1
    success, _, hits, misses, inferences, executions = counts(server, "slow")
    assert (success, hits, misses, inferences, executions) == (8, 7, 1, 1, 1)


def preload(server: GatewayServer, file: Path, *options: str) -> int:
    return main(["model", "preload", options[0], str(file), *options[1:], "--url", f"http://{server.http_url}"])


def test_a_file_of_inputs_fills_the_cache(
    server: GatewayServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.npz"
    rows = np.arange(15, dtype=np.float32).reshape(5, 3) + 100
    np.savez(file, x=rows)
    before = counts(server, "cached")
    assert preload(server, file, "cached") == 0
    assert preload(server, file, "cached", "--rows", "2") == 0
    assert preload(server, file, "cached") == 0
    assert capsys.readouterr().out.splitlines() == [
        "cached: 5 requests; 5 answers are new in the cache, 0 were there",
        "cached: 3 requests; 2 answers are new in the cache, 1 were there",
        "cached: 5 requests; 0 answers are new in the cache, 5 were there",
    ]
    assert infer(server, "grpc", "cached", "x", rows[3:4]).as_numpy("y").tolist() == rows[3:4].tolist()
    assert [now - then for now, then in zip(counts(server, "cached"), before, strict=True)][2:4] == [7, 7]


def test_a_file_that_cannot_fill_the_cache_is_refused(
    server: GatewayServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, x=np.zeros((2, 4), np.float32))
    uneven = tmp_path / "uneven.npz"
    np.savez(uneven, x=np.zeros((2, 3), np.float32), z=np.zeros((3, 3), np.float32))
    (tmp_path / "text.npz").write_text("no arrays")
    np.save(tmp_path / "one.npy", np.zeros((2, 3), np.float32))
    for arguments, complaint in (
        ((file, "cached"), f"{file}: row 0: input 'x': expected shape [-1, 3], got [1, 4]"),
        ((uneven, "cached"), f"{uneven}: expected arrays with the same number of rows, at least 1, got x [2, 3], z"),
        ((tmp_path / "none.npz", "cached"), "none.npz: cannot be read: No such file or directory"),
        ((tmp_path / "text.npz", "cached"), "text.npz: cannot be read as .npz: "),
        ((tmp_path / "one.npy", "cached"), "one.npy: cannot be read as .npz: it holds one array without a name"),
        ((file, "plain"), "plain: its answers are not cached; expected response_cache { enable: true } in its"),
        ((file, "cached", "--rows", "0"), "--rows: expected at least 1, got 0"),
    ):
        assert preload(server, *arguments) == 2
        assert complaint in capsys.readouterr().err


def test_an_explanation_says_that_it_came_from_the_cache(server: GatewayServer) -> None:
    row = np.array([[9, 9, 9]], np.float32)
    # The second is an ensemble that has no cache, but a step that has.
    for model, name in (("cached", "x"), ("known", "a")):
        for _ in range(2):
            infer(server, "http", model, name, row, request_id=f"again-{model}")
        _, _, body = server.request("GET", f"/v2/sluice/requests/again-{model}")
        assert b"it was answered from the cache" in body
