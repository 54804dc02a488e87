"""A real server sends the spans of its requests to a collector of OpenTelemetry."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_spin
from tests.support.otel.collector import Collector, ReceivedSpan, grpc_collector, http_collector, silent_address

ROOT = Path(__file__).parents[2]
CASCADE = """
stages:
  first: {model: quick, inputs: {x: request.x}}
  second: {model: slow, inputs: {x: request.x}, when: {stage: first, output: y, below: 1.0}}
outputs:
  y: {from: [second.y, first.y]}
"""
PARENT = "00f067aa0ba902b7"
HAND_OFF = {"hand-off", "compute", "return"}


def otel(collector: Collector | str, protocol: str = "grpc", **settings: object) -> dict[str, object]:
    """The setting `trace` for a collector; the rate is 0 unless given."""
    endpoint = collector if isinstance(collector, str) else collector.endpoint
    return {
        "mode": "opentelemetry",
        "rate": 0,
        "opentelemetry": {
            "endpoint": endpoint,
            "protocol": protocol,
            "headers": {"x-tenant": "blue"},
            "resource": {"deployment.environment": "test"},
        },
        **settings,
    }


def server_config(trace: dict[str, object], **more: object) -> dict[str, object]:
    return {"max_batch_size": 8, "partitions": 1, "default_slo_ms": 60_000, "trace": trace, **more}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tracing") / "models"
    save_spin(directory / "quick" / "1" / "model.onnx", 2_000, 0)
    save_spin(directory / "slow" / "1" / "model.onnx", 20_000, 0)
    (directory / "cascade").mkdir()
    (directory / "cascade" / "pipeline.yaml").write_text(CASCADE)
    return directory


@pytest.fixture(scope="module")
def quick_only(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose servers start sooner."""
    directory = tmp_path_factory.mktemp("quick") / "models"
    shutil.copytree(repository / "quick", directory / "quick")
    return directory


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with grpc_collector() as running:
        yield running


@pytest.fixture(scope="module")
def server(repository: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with gateway_server(repository, tmp_path_factory.mktemp("server"), server_config(otel(collector))) as running:
        yield running


def trace_id(number: int) -> str:
    return f"{number:032x}"


def context(trace: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-{flags}", "tracestate": "vendor=value"}


def infer(
    server: GatewayServer, name: str, headers: dict[str, str] | None = None, id: str = ""
) -> tuple[int, dict[str, str]]:
    values = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.01] * 64}
    body = json.dumps({"id": id, "inputs": [values]}).encode()
    status, replied, _ = server.request("POST", f"/v2/models/{name}/infer", body, headers)
    return status, replied


def infer_by_grpc(server: GatewayServer, name: str, headers: dict[str, str], id: str) -> None:
    request = service_pb2.ModelInferRequest(model_name=name, id=id)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(np.full(64, 0.01, np.float32).tobytes())
    with grpc.insecure_channel(server.grpc_url) as channel:
        service = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        service.ModelInfer(request, metadata=tuple(headers.items()), timeout=60)


def explained(server: GatewayServer, id: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(server.request("GET", f"/v2/sluice/requests/{id}")[2])
    return said


def metric(server: GatewayServer, name: str) -> float:
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), -1.0)


def total_ms(spans: list[ReceivedSpan], name: str) -> float:
    return sum(span.ms for span in spans if span.name == name)


def check_cascade(spans: list[ReceivedSpan], said: dict[str, Any]) -> ReceivedSpan:
    """Check that spans are one tree with the times of an explanation; returns the root."""
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans) == 1 + 2 * (1 + 5)
    (root,) = [span for span in spans if span.is_server]
    assert root.name == "infer cascade"
    assert {span.parent for span in spans if span.parent not in by_id} == {root.parent}
    stages = [span for span in spans if span.parent == root.id]
    assert sorted(span.name for span in stages) == ["stage first", "stage second"]
    for stage in stages:
        inner = {span.name.partition(" ")[0]: span for span in spans if span.parent == stage.id}
        assert inner.keys() == {"queue", "batch"}
        assert {span.name for span in spans if span.parent == inner["batch"].id} == HAND_OFF
        assert stage.ms == pytest.approx(inner["queue"].ms + inner["batch"].ms, rel=0.01)
    for name, key in (("queue", "queue_ms"), ("hand-off", "hand_off_ms"), ("compute", "compute_ms")):
        assert total_ms(spans, name) == pytest.approx(sum(each[key] for each in said["stages"]), rel=0.01, abs=0.002)
    assert root.ms == pytest.approx(said["total_ms"], rel=0.01)
    assert root.attributes["sluice.request_id"] == said["id"]
    assert root.attributes["sluice.outcome"] == said["outcome"] == "completed"
    assert root.attributes["sluice.why"] == said["sentence"]
    return root


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_cascade_is_one_tree_of_the_callers_trace(server: GatewayServer, collector: Collector, protocol: str) -> None:
    trace = trace_id(1 if protocol == "http" else 2)
    if protocol == "http":
        infer(server, "cascade", context(trace), id=trace)
    else:
        infer_by_grpc(server, "cascade", context(trace), id=trace)
    spans, said = collector.tree(trace), explained(server, trace)
    root = check_cascade(spans, said)
    assert root.parent == PARENT
    assert root.state == "vendor=value"
    assert said["trace_id"] == trace
    assert root.resource["service.name"] == "sluice"
    assert root.resource["deployment.environment"] == "test"
    assert collector.headers[-1]["x-tenant"] == "blue"
    if protocol == "http":
        assert root.attributes["http.request.method"] == "POST"
    else:
        assert root.attributes["rpc.method"] == "ModelInfer"


def test_requests_of_a_batch_are_linked(server: GatewayServer, collector: Collector) -> None:
    traces = [trace_id(100 + number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda trace: infer(server, "slow", context(trace)), traces))
    batches: dict[int, list[ReceivedSpan]] = {}
    for trace in traces:
        for span in collector.tree(trace):
            if span.name.startswith("batch "):
                batches.setdefault(span.attributes["sluice.batch"], []).append(span)
    assert max(map(len, batches.values())) > 1
    for members in batches.values():
        for span in members:
            assert span.attributes["sluice.batch.requests"] == len(members)
            others = {(each.trace_id, each.id) for each in members if each is not span}
            assert {tuple(link) for link in span.links} == others


def test_a_caller_that_does_not_record_has_no_spans_but_its_id_everywhere(
    server: GatewayServer, collector: Collector
) -> None:
    quiet, loud = trace_id(3), trace_id(4)
    _, headers = infer(server, "quick", {**context(quiet, "00"), "x-sluice-explain": "1"})
    assert headers["x-sluice-trace-id"] == quiet
    infer(server, "quick", {"traceparent": "00-not-one-01"})
    infer(server, "quick")
    infer(server, "quick", context(loud))
    collector.tree(loud)
    assert not collector.of(quiet)


def test_a_refused_request_is_an_error(server: GatewayServer, collector: Collector) -> None:
    trace = trace_id(5)
    values = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.01] * 64}
    body = json.dumps({"inputs": [values], "parameters": {"slo_ms": 0.001}}).encode()
    assert server.request("POST", "/v2/models/slow/infer", body, context(trace))[0] == 503
    (span,) = collector.tree(trace)
    assert span.is_error
    assert span.attributes["error.type"] == span.attributes["sluice.outcome"] == "rejected_deadline"


def test_clients_change_the_rate_and_the_level(server: GatewayServer, collector: Collector) -> None:
    path = "/v2/models/quick/trace/setting"
    settings = json.loads(server.request("GET", path)[2])
    assert settings["trace_mode"] == "opentelemetry"
    assert settings["trace_level"] == ["TIMESTAMPS"]
    assert settings["trace_rate"] == "0"
    before = len(collector.spans)

    def roots() -> list[ReceivedSpan]:
        return [span for span in collector.spans[before:] if span.is_server]

    try:
        assert server.request("POST", path, b'{"trace_rate": "2"}')[0] == 200
        for _ in range(6):
            infer(server, "quick")
        collector.wait(lambda: len(roots()) >= 3)
        assert server.request("POST", path, b'{"trace_level": ["OFF"]}')[0] == 200
        for _ in range(6):
            infer(server, "quick")
        infer(server, "quick", context(trace_id(6)))
        infer(server, "slow", context(trace_id(7)))
        collector.tree(trace_id(7))
    finally:
        server.request("POST", path, b'{"trace_level": null, "trace_rate": null}')
    assert not collector.of(trace_id(6))
    assert [span.parent for span in roots() if span.name == "infer quick"] == [""] * 3
    assert len({span.trace_id for span in roots() if span.name == "infer quick"}) == 3
    status, _, body = server.request("POST", path, b'{"trace_mode": "triton"}')
    assert status == 501
    assert b"trace mode can not be updated" in body


def test_spans_are_counted_and_durations_have_exemplars(server: GatewayServer, collector: Collector) -> None:
    trace = trace_id(8)
    infer(server, "slow", context(trace))
    collector.tree(trace)
    until(lambda: metric(server, "sluice_trace_spans_exported_total") >= len(collector.spans))
    assert metric(server, 'sluice_trace_spans_dropped_total{reason="collector"}') == 0
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    _, headers, body = server.request("GET", "/metrics", headers=accept)
    assert headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert f'trace_id="{trace}"'.encode() in body
    assert body.endswith(b"# EOF\n")


def test_http_is_a_way_to_the_collector_and_front_ends_pass_contexts_on(repository: Path, tmp_path: Path) -> None:
    with http_collector() as collector:
        config = server_config(otel(collector, "http/protobuf"), front_ends=2)
        with gateway_server(repository, tmp_path, config) as server:
            first, second = trace_id(1), trace_id(2)
            infer(server, "cascade", context(first), id=first)
            infer_by_grpc(server, "cascade", context(second), id=second)
            for trace in (first, second):
                root = check_cascade(collector.tree(trace), explained(server, trace))
                assert root.parent == PARENT
                assert root.state == "vendor=value"


def test_the_environment_configures_the_exporter(
    quick_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a,deployment.environment=prod")
        config = server_config({"mode": "opentelemetry", "rate": 1, "count": 2})
        with gateway_server(quick_only, tmp_path, config) as server:
            for _ in range(4):
                infer(server, "quick")
            collector.wait(lambda: collector.spans)
        # All spans have come with the end of the server.
        roots = [span for span in collector.spans if span.is_server]
        assert len(roots) == 2
        assert roots[0].resource["service.name"] == "mine"
        assert roots[0].resource["team"] == "a"


PYTHON_CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 64 }
output { name: "y" data_type: TYPE_FP32 dims: 64 }
output { name: "seen" data_type: TYPE_STRING dims: 1 }
"""
CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x")
        call = pb_utils.InferenceRequest(
            model_name="quick", requested_output_names=["y"], inputs=[x], trace=request.trace()
        )
        response = call.exec()
        seen = np.full((x.as_numpy().shape[0], 1), request.trace().get_context() or "none", np.object_)
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("y", x.as_numpy()), pb_utils.Tensor("seen", seen)
        ])
"""


def test_models_in_python_see_the_trace_and_their_calls_are_in_it(repository: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository / "quick", models / "quick")
    (models / "caller" / "1").mkdir(parents=True)
    (models / "caller" / "config.pbtxt").write_text(PYTHON_CONFIG)
    (models / "caller" / "1" / "model.py").write_text(CALLER)
    with grpc_collector() as collector, gateway_server(models, tmp_path, server_config(otel(collector))) as server:
        trace = trace_id(1)
        values = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.01] * 64}
        body = json.dumps({"inputs": [values]}).encode()
        _, _, text = server.request("POST", "/v2/models/caller/infer", body, context(trace))
        outputs = {each["name"]: each["data"] for each in json.loads(text)["outputs"]}
        spans = collector.tree(trace, roots=2)
        (batch,) = [span for span in spans if span.name == "batch caller:1"]
        seen = json.loads(outputs["seen"][0])
        assert seen == {"traceparent": f"00-{trace}-{batch.id}-01", "tracestate": "vendor=value"}
        (called,) = [span for span in spans if span.name == "infer quick"]
        assert called.parent == batch.id
        untraced = {each["name"]: each["data"] for each in json.loads(post(server, "caller", body))["outputs"]}
        assert untraced["seen"] == ["none"]


def post(server: GatewayServer, name: str, body: bytes) -> bytes:
    return server.request("POST", f"/v2/models/{name}/infer", body)[2]


def test_a_trace_goes_on_in_a_server_of_tritons_protocol_behind_this_one(quick_only: Path, tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    (tmp_path / "front").mkdir()
    with grpc_collector() as collector:
        trace = otel(collector, rate=0)
        with gateway_server(quick_only, tmp_path / "behind", server_config(trace)) as behind:
            config = server_config(trace, triton=[{"name": "t", "url": behind.grpc_url, "cores": []}], partitions=[])
            with gateway_server(None, tmp_path / "front", config) as front:
                id = trace_id(1)
                infer(front, "quick", context(id))
                spans = collector.tree(id, roots=2)
        (batch,) = [
            span
            for span in spans
            if span.attributes.get("sluice.partition") == "t" and span.links == () and span.name == "batch quick:1"
        ]
        (inner,) = [span for span in spans if span.is_server and span.parent != PARENT]
        assert inner.parent == batch.id
        assert inner.state == "vendor=value"


def test_a_collector_that_is_away_costs_spans_and_nothing_else(
    quick_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    with (
        silent_address() as address,
        gateway_server(quick_only, tmp_path, server_config(otel(f"http://{address}", rate=1))) as server,
    ):
        assert [infer(server, "quick")[0] for _ in range(20)] == [200] * 20
        until(lambda: metric(server, 'sluice_trace_spans_dropped_total{reason="collector"}') > 0)
        assert "spans cannot be exported" in server.log.read_text()
        with grpc_collector(address) as back:
            last = trace_id(9)
            infer(server, "quick", context(last))
            back.tree(last)
        # It is counted once the exporter has the collector's answer, and says so.
        until(lambda: metric(server, "sluice_trace_spans_exported_total") > 0)


def test_a_slow_collector_costs_spans_and_nothing_else(
    quick_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # spans that were dropped are counted after it
    with grpc_collector() as slow:
        slow.delay_s = 60
        trace = otel(slow, rate=1)
        trace["opentelemetry"] = {"endpoint": slow.endpoint, "protocol": "grpc", "queue_spans": 60}
        with gateway_server(quick_only, tmp_path, server_config(trace)) as server:
            assert [infer(server, "quick")[0] for _ in range(60)] == [200] * 60
            until(lambda: metric(server, 'sluice_trace_spans_dropped_total{reason="queue"}') > 0)
            slow.let_go()


def test_an_exporter_that_dies_is_started_again(quick_only: Path, tmp_path: Path) -> None:
    with grpc_collector() as collector, gateway_server(quick_only, tmp_path, server_config(otel(collector))) as server:
        (exporter,) = exporters(server)
        os.kill(exporter, 9)
        until(lambda: exporters(server) not in ([], [exporter]))
        trace = trace_id(1)
        infer(server, "quick", context(trace))
        collector.tree(trace)
        assert "span exporter lost" in server.log.read_text()


def exporters(server: GatewayServer) -> list[int]:
    found = []
    for pid in children(server.process.pid):
        with suppress(OSError):  # it has ended
            if b"sluice.gateway.tracing.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def logged_requests(server: GatewayServer) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log.read_text().split("\n")[:-1] if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


def test_slow_and_failed_requests_are_logged(repository: Path, tmp_path: Path) -> None:
    config = server_config({}, request_log={"slower_than_ms": 0, "failed": True})
    with gateway_server(repository, tmp_path, config, ["--log-format", "json"]) as server:
        trace = trace_id(1)
        infer(server, "cascade", context(trace, "00"), id="slow")
        values = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.01] * 64}
        body = json.dumps({"id": "late", "inputs": [values], "parameters": {"slo_ms": 0.001}}).encode()
        assert server.request("POST", "/v2/models/slow/infer", body)[0] == 503
        until(lambda: len(logged_requests(server)) == 2)
        slow, late = logged_requests(server)
        said = explained(server, "slow")
        assert (slow["id"], slow["trace_id"], slow["pipeline"], slow["outcome"]) == (
            "slow",
            trace,
            "cascade:1",
            "completed",
        )
        assert (slow["total_ms"], slow["cause"], slow["why"]) == (said["total_ms"], said["cause"], said["sentence"])
        assert [each["compute_ms"] for each in slow["stages"]] == [each["compute_ms"] for each in said["stages"]]
        assert late["id"] == "late"
        assert "trace_id" not in late
        assert late["outcome"] == late["cause"] == "rejected_deadline"


def test_without_the_libraries_the_error_names_the_extra(repository: Path, tmp_path: Path) -> None:
    settings = tmp_path / "sluice.yaml"
    settings.write_text(json.dumps({"trace": {"mode": "opentelemetry"}, "http_port": 0, "grpc_port": 0}))
    block = "import sys; sys.modules['opentelemetry.sdk'] = None"
    program = f"{block}; from sluice.gateway.cli.main import main; sys.exit(main())"
    words = ["serve", "--repository", str(repository), "--config", str(settings)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install 'sluice-gateway[otel]'" in done.stderr
    assert "Traceback" not in done.stderr
