"""A running server says what it does: the document and its events beside the metrics, also with front ends."""

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.gateway.observability.meters import DURATION_BOUNDS_NS
from sluice.gateway.overview.counters import quantile_ns
from sluice.gateway.overview.live import MAX_VIEWERS
from tests.support.gateway.processes import front_ends, until
from tests.support.gateway.server import STOP_TIMEOUT_S, GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

CONFIG: dict[str, object] = {"partitions": 2, "metrics_port": 0, "default_slo_ms": 60_000}
DURATIONS = "sluice_request_duration_seconds_bucket"
SHORT_MS, LONG_MS = 2, 20
ATTEMPTS = 5
CHAIN = """
slo_ms: 50000
stages:
  first: {model: short, inputs: {x: request.x}}
  second: {model: long, inputs: {x: first.y}}
outputs:
  y: {from: [second.y]}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("overview") / "models"
    save_timed(repository, "short", {1: SHORT_MS})
    save_timed(repository, "long", {1: LONG_MS})
    (repository / "both").mkdir()
    (repository / "both" / "pipeline.yaml").write_text(CHAIN)
    (repository / "torn" / "1").mkdir(parents=True)
    (repository / "torn" / "1" / "model.onnx").write_bytes(b"no model")
    return repository


@pytest.fixture(scope="module", params=[0, 2])
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    directory = tmp_path_factory.mktemp("server")
    with gateway_server(repository, directory, {**CONFIG, "front_ends": request.param}) as running:
        yield running


BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


def infer(server: GatewayServer, model: str, count: int = 1) -> None:
    for _ in range(count):
        assert server.request("POST", f"/v2/models/{model}/infer", BODY)[0] == 200


def miss(server: GatewayServer) -> None:
    """Ask for an answer sooner than the model can have it."""
    body = json.dumps({**json.loads(BODY), "parameters": {"slo_ms": 1}}).encode()
    assert server.request("POST", "/v2/models/long/infer", body)[0] == 503


def now(server: GatewayServer, query: str = "", headers: dict[str, str] | None = None) -> Any:
    status, _, body = server.request("GET", f"/v2/sluice/now{query}", headers=headers)
    return json.loads(body) if status == 200 else status


def scrape(server: GatewayServer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of the metrics by name and labels."""
    families = text_string_to_metric_families(server.request("GET", "/metrics")[2].decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@contextmanager
def events(port: int, query: str = "") -> Iterator[http.client.HTTPResponse]:
    """A stream of events, with its head read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/v2/sluice/now/events{query}", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()  # which has the socket
        connection.close()


def next_document(stream: http.client.HTTPResponse) -> Any:
    """The document of the next event; None at the end of the stream."""
    while line := stream.readline():
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))
    return None


def all_viewers(port: int) -> ExitStack:
    """As many streams as may be open; those of earlier tests leave with the next event that they would get."""
    stack = ExitStack()
    open_streams: list[http.client.HTTPResponse] = []

    def one_more_gets_in() -> bool:
        with ExitStack() as attempt:
            stream = attempt.enter_context(events(port))
            if stream.status == 200:
                open_streams.append(stream)
                stack.push(attempt.pop_all())
        return len(open_streams) == MAX_VIEWERS

    until(one_more_gets_in)
    return stack


def metrics_port(server: GatewayServer) -> int:
    port: int = json.loads((server.log.parent / "ready.json").read_text())["metrics_port"]
    return port


def test_the_numbers_are_those_of_the_metrics(server: GatewayServer) -> None:
    with events(server.http_port, "?pipeline=both") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        first = next_document(stream)
        before = scrape(server)
        infer(server, "short", 5)
        infer(server, "both", 10)
        after = scrape(server)
        good = first["pipeline"]["history"]["good"]
        latest = first
        while sum(good) < 10:
            latest = next_document(stream)
            good += latest["pipeline"]["history"]["good"]

    def counted(name: str, **labels: str) -> int:
        sample = name, frozenset({"pipeline": "both:1", **labels}.items())
        return round(after[sample] - before[sample])

    assert sum(good) == counted("sluice_requests_total", outcome="completed") == 10
    limits = {float(dict(labels)["le"]): dict(labels)["le"] for name, labels in after if name == DURATIONS}
    upto = [counted(DURATIONS, le=limits[each]) for each in sorted(limits)]
    assert len(upto) == len(DURATION_BOUNDS_NS) + 1
    buckets = [count - below for count, below in zip(upto, [0, *upto], strict=False)]
    (row,) = [each for each in latest["pipelines"] if each["name"] == "both:1"]
    for cell, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        expected_ns = quantile_ns(buckets, share)
        assert expected_ns is not None
        assert row[cell] == pytest.approx(expected_ns / 1e6, rel=1e-3)
    window_s = latest["totals"]["requests_per_s"] and 15 / latest["totals"]["requests_per_s"]
    assert row["requests_per_s"] == pytest.approx(10 / window_s, rel=1e-3)
    stages = latest["pipeline"]["stages"]
    for stage, model in zip(stages, ("short:1", "long:1"), strict=True):
        ran = counted("sluice_stage_rows_total", stage=stage["name"])
        assert ran == 10
        assert stage["rows_per_s"] == pytest.approx(10 / window_s, rel=1e-3)
        assert (stage["model"], stage["share"]) == (model, 1.0)
    assert stages[1]["latency_ms"] >= LONG_MS
    assert row["in_time"] == latest["totals"]["in_time"] == 1.0


def test_the_timeline_has_each_batch_once(server: GatewayServer) -> None:
    seen: dict[int, Any] = {}
    with events(server.http_port, "?pipeline=long") as stream:
        next_document(stream)
        infer(server, "long", 10)
        while sum(bar["rows"] for bar in seen.values() if bar["model"] == "long:1") < 10:
            timeline = next_document(stream)["timeline"]
            for number, partition, model, start_s, length_ms, rows, merged in timeline["bars"]:
                if length_ms >= 0:
                    assert number not in seen
                    seen[number] = {"model": timeline["models"][model], "rows": rows, "merged": merged}
                    assert partition in (0, 1)
                    assert 0 <= start_s <= timeline["to_s"] - timeline["from_s"]
                    if timeline["models"][model] == "long:1":
                        assert length_ms >= LONG_MS
    # A batch that is overdue on a busy machine has a copy, which is a batch of its own.
    assert sum(bar["rows"] for bar in seen.values() if bar["model"] == "long:1") >= 10


def test_what_is_not_served_and_what_is_planned_is_said(server: GatewayServer) -> None:
    infer(server, "both", 3)
    found = now(server, "?pipeline=both")
    (torn,) = found["not_served"]
    assert torn["name"] == "torn"
    assert "model.onnx" in torn["reason"]
    assert found["server"]["front_ends"] == len(front_ends(server.process.pid))
    assert [each["proof"] for each in found["partitions"]] == ["enforced"] * 2
    until(lambda: now(server, "?pipeline=both")["pipeline"]["plan"].get("highest_rate") is not None)
    plan = now(server, "?pipeline=both")["pipeline"]["plan"]
    assert plan["in_force"] is True
    assert [stage["stage"] for stage in plan["stages"]] == ["first", "second"]
    predicted = [stage["predicted_ms"] for stage in plan["stages"]]
    assert all(ms >= 0.9 * least for ms, least in zip(predicted, (SHORT_MS, LONG_MS), strict=True))
    assert plan["highest_rate"] > 10
    status, _, body = server.request("GET", "/v2/sluice/plan?pipeline=both")
    assert status == 200
    (explained,) = json.loads(body)["pipelines"]
    assert explained["pipeline"] == "both:1"
    assert explained["slo_ms"] == 50_000
    assert [stage["model"] for stage in explained["plan"]["stages"]] == ["short:1", "long:1"]
    (every,) = json.loads(server.request("GET", "/v2/sluice/plan")[2])["pipelines"]
    assert every["pipeline"] == "both:1"
    assert every["highest_rate"] is None  # looked for if one is asked for


def test_a_late_request_is_among_the_troubles_with_what_why_says(server: GatewayServer) -> None:
    miss(server)
    until(lambda: bool(now(server)["troubles"]))
    trouble = now(server)["troubles"][0]
    explained = json.loads(server.request("GET", f"/v2/sluice/requests/{trouble['id']}")[2])
    assert trouble["sentence"] == explained["sentence"]
    assert trouble["outcome"] == explained["outcome"]
    assert abs(trouble["at_s"] - time.time()) < 60


def test_the_metrics_port_has_the_same(server: GatewayServer) -> None:
    port = metrics_port(server)
    with events(port) as stream:
        assert stream.status == 200
        assert next_document(stream)["server"]["state"] == "ready"
        assert next_document(stream)["server"]["state"] == "ready"
    for path in ("/", "/v2/sluice/now", "/metrics"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        assert connection.getresponse().status == 200
        connection.close()


def test_the_head_of_the_events_holds_nothing(server: GatewayServer) -> None:
    for _ in range(MAX_VIEWERS + 1):
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        connection.request("HEAD", "/v2/sluice/now/events")
        response = connection.getresponse()
        assert response.status == 200
        response.read()
        connection.close()
    assert server.request("GET", "/v2/sluice/plan")[0] == 200


def test_viewers_that_leave_make_room_and_others_are_served_meanwhile(server: GatewayServer) -> None:
    with all_viewers(server.http_port):
        with events(server.http_port) as refused:
            assert refused.status == 503
            assert f"{MAX_VIEWERS} viewers" in json.loads(refused.read())["error"]
        infer(server, "short", 5)
        assert now(server)["server"]["state"] == "ready"
    all_viewers(server.http_port).close()


def first_worker(server: GatewayServer) -> int | None:
    report = json.loads(server.request("GET", "/v2/sluice/partitions")[2])
    worker: int | None = report["partitions"][0]["worker"]
    return worker


def lose_worker(server: GatewayServer) -> None:
    """Kill the worker of the first partition, and wait for the next one."""
    worker = first_worker(server)
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    until(lambda: first_worker(server) not in (None, worker))


def test_a_lost_partition_shows_with_its_reason(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, CONFIG) as server, events(server.http_port) as stream:
        lost: list[Any] = []
        for _ in range(ATTEMPTS):  # a worker that is back before the next tick has not been seen
            lose_worker(server)
            lose_worker(server)  # the first loss is mended at once, by the spare worker
            back_s = time.time()
            while (document := next_document(stream))["server"]["now_s"] < back_s or document["server"]["reasons"]:
                if document["server"]["reasons"]:
                    lost.append(document["server"])
            if lost:
                break
        assert {each["state"] for each in lost} == {"degraded"}
        assert lost[0]["reasons"][0].startswith("partition cpu0 is down: ")
        assert [each["state"] for each in document["partitions"]] == ["ready", "ready"]


def test_a_stopping_server_says_so_and_ends_the_streams(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, CONFIG) as server:
        ports = (server.http_port, metrics_port(server))
        with events(ports[0]) as one, events(ports[1]) as other:
            for stream in (one, other):
                next_document(stream)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for stream in (one, other):
                latest = next_document(stream)
                while (following := next_document(stream)) is not None:
                    latest = following
                assert latest["server"]["state"] == "draining"
            assert server.process.wait(STOP_TIMEOUT_S) == 0
            assert time.monotonic() - began < STOP_TIMEOUT_S / 2


def test_on_a_network_the_page_can_need_a_key_and_requests_are_not_shown(repository: Path, tmp_path: Path) -> None:
    keys = [{"groups": ["page"], "header": "page-key", "value": "s3cret"}]
    key = {"page-key": "s3cret"}
    with gateway_server(repository, tmp_path, {**CONFIG, "host": "0.0.0.0", "restricted": keys}) as server:
        assert now(server) == 403
        with events(metrics_port(server)) as refused:
            assert refused.status == 403
        assert server.request("GET", "/")[2] == b'{"status":"alive"}'
        miss(server)
        until(lambda: now(server, headers=key)["totals"]["requests_per_s"] is not None)
        found = now(server, headers=key)
        assert (found["server"]["state"], found["troubles"], found["troubles_open"]) == ("ready", [], False)
        assert server.request("GET", "/v2/sluice/requests/x")[0] == 403
