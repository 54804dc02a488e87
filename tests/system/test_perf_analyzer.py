"""Triton's perf_analyzer as it is, against a real server: in all its ways to send requests, and none of them fails."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import tritonclient.http

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity
from tests.support.triton import perf_analyzer
from tests.support.triton.setup import TritonUnavailable

REQUESTS = 300
TRIES = 3
CLOSED = ["--concurrency-range", "4"]
OPEN = ["--request-rate-range", "250"]
MODES = {
    "concurrency": ("concurrency", CLOSED),
    "concurrency, async": ("concurrency", [*CLOSED, "--async"]),
    "request rate": ("request_rate", OPEN),
    "request rate, Poisson": ("request_rate", [*OPEN, "--request-distribution", "poisson"]),
    "batches of 4": ("concurrency", [*CLOSED, "-b", "4"]),
    "shared memory": ("concurrency", [*CLOSED, "--shared-memory", "system"]),
    "JSON": ("concurrency", [*CLOSED, "--input-tensor-format", "json", "--output-tensor-format", "json"]),
    "a stream": ("concurrency", [*CLOSED, "--async", "--streaming"]),
}
OVER = {"http": [mode for mode in MODES if mode != "a stream"], "grpc": [mode for mode in MODES if mode != "JSON"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    try:
        perf_analyzer.set_up()
    except (TritonUnavailable, perf_analyzer.PerfAnalyzerUnavailable) as reason:
        pytest.skip(str(reason))
    directory = tmp_path_factory.mktemp("perf_analyzer")
    repository = directory / "models"
    save_identity(repository / "identity" / "1" / "model.onnx", DataType.INT32, [16])
    with gateway_server(repository, directory, {"partitions": 1, "allow_client_shm": True}) as running:
        yield running


def counts(server: GatewayServer) -> tuple[int, int]:
    """The numbers of requests that succeeded and that failed."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        (entry,) = client.get_inference_statistics("identity")["model_stats"]
    ended = entry["inference_stats"]
    return ended["success"]["count"], ended["fail"]["count"]


@pytest.mark.behaviour("L0_perf_analyzer", "{mode}", through="perf_analyzer")
@pytest.mark.parametrize(("protocol", "mode"), [(protocol, mode) for protocol in OVER for mode in OVER[protocol]])
def test_perf_analyzer_runs_as_against_triton(server: GatewayServer, tmp_path: Path, protocol: str, mode: str) -> None:
    kind, arguments = MODES[mode]
    url = server.http_url if protocol == "http" else server.grpc_url
    succeeded, failed = counts(server)
    wanted = ("-m", "identity", "-i", protocol, "-u", url, "--request-count", str(REQUESTS), *arguments)
    for _ in range(TRIES):
        before = counts(server)[0]
        with suppress(subprocess.TimeoutExpired):
            rows, (experiment,) = perf_analyzer.profile(tmp_path, *wanted)
            break
        # It waits forever where all is answered before it begins to count, as on a machine with other work.
        assert counts(server)[0] - before >= REQUESTS
    else:
        pytest.fail(f"it did not end in any of {TRIES} tries")
    assert experiment["experiment"]["mode"] == kind
    requests = experiment["requests"]
    assert len(requests) >= REQUESTS
    assert all(each["response_timestamps"] for each in requests)
    if mode != "shared memory":  # whose tensors are not exported
        rows_each = 4 if mode == "batches of 4" else 1
        assert all(each["response_outputs"][0]["y"] == each["request_inputs"]["x"] * rows_each for each in requests)
    (row,) = rows
    assert float(row["Inferences/Second"]) > 0
    assert float(row["Server Compute Infer"]) > 0
    assert counts(server)[0] - succeeded >= len(requests)
    assert counts(server)[1] == failed == 0
