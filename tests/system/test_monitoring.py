"""The dashboard, the alerts and the examples of queries against a real Prometheus, and the server's metrics before it.

The server has all that has metrics and needs neither a GPU nor a Triton server.
"""

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

import pytest
import yaml

from scripts.reference.metric_notes import EXAMPLES
from scripts.reference.metrics import metric_definitions
from tests.support.documents import ROOT
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp
from tests.support.prometheus import Prometheus, compared, prometheus
from tests.support.tools import require_tool
from tests.support.triton.server import free_ports

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "sluice.json"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
NOT_HERE = re.compile(
    r"\b(nv_gpu_|nv_energy_|nv_cache_|sluice_triton_|sluice_partition_device_|sluice_trace_"
    r"|sluice_node_|sluice_partition_node|sluice_partitions_|sluice_batch_padded_|sluice_batch_learned_"
    r"|sluice_instance_|sluice_plan_fallbacks_|sluice_partial_)"
)
"""Metrics of GPUs, Triton servers, the response cache, exported traces, partitions on other machines, and of policies,
planners and combiners that the server here does not have."""
SETTLE_S = 60.0
CASCADE = """
slo_ms: 1000
stages:
  small: {model: small, inputs: {x: request.x}}
  large: {model: large, inputs: {x: request.x}, when: {stage: small, output: y, below: 0.6}}
outputs:
  y: {from: [large.y, small.y]}
"""


class Watched(NamedTuple):
    """A server with traffic, and the Prometheus that scrapes it."""

    server: GatewayServer
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("monitoring")
    repository = directory / "models"
    for seed, name in enumerate(("small", "large")):
        save_mlp(repository / name / "1" / "model.onnx", [4, 16, 2], seed)
    (repository / "cascade").mkdir()
    (repository / "cascade" / "pipeline.yaml").write_text(CASCADE)
    config: dict[str, object] = {
        "partitions": [{"name": "cpu0", "cores": [0], "memory_mb": 200}],
        "residency": {"loading": "demand"},
        "prices": {"core_hour": 1},
        "front_ends": 1,
        "metrics_port": 0,
        "metrics_interval_ms": 100,
        # No collector is needed: exemplars are of all requests that are recorded.
        "trace": {"mode": "opentelemetry", "rate": 5, "opentelemetry": {"endpoint": "http://127.0.0.1:9"}},
    }
    with gateway_server(repository, directory, config, ["--metrics-config", "summary_latencies=true"]) as server:
        target = f"127.0.0.1:{json.loads((directory / 'ready.json').read_text())['metrics_port']}"
        (port,) = free_ports(1)
        with prometheus(directory, port, target, ALERTS) as scraper, _traffic(server):
            yield Watched(server, scraper)


@contextmanager
def _traffic(server: GatewayServer) -> Iterator[None]:
    """Send requests until the end of the block, of which some cannot be in time."""
    over = threading.Event()

    def send() -> None:
        for number in count():
            values = [0.1 * (number % 7), 0.3, -0.2, 0.5]
            document = {
                "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": values}],
                "parameters": {"slo_ms": 0.001} if number % 20 == 0 else {},
            }
            model = ("cascade", "cascade", "small")[number % 3]
            server.request("POST", f"/v2/models/{model}/infer", json.dumps(document).encode())
            if over.wait(0.01):
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _queries() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard, of the rules and of the reference, with its origin."""
    board = json.loads(DASHBOARD.read_text())
    for row in board["panels"]:
        for panel in row.get("panels") or [row]:
            for target in panel.get("targets", ()):
                yield f"panel {panel['title']}", target["expr"]
    for mark in board["annotations"]["list"]:
        yield f"annotation {mark['name']}", mark["expr"]
    for rule in RULES:
        yield f"rule {rule.get('alert') or rule['record']}", rule["expr"]
    for name, examples in EXAMPLES.items():
        yield from ((f"example of {name}", example.query) for example in examples)


def _filled_in(query: str) -> str:
    return query.replace("$__rate_interval", "30s").replace("$instance", ".*").replace("$pipeline", ".*")


def test_every_query_of_the_dashboard_the_alerts_and_the_reference_has_an_answer(watched: Watched) -> None:
    open_queries = {
        (origin, part)
        for origin, query in _queries()
        for part in compared(_filled_in(query))
        if not NOT_HERE.search(part)
    }
    assert len(open_queries) > 80
    until = time.monotonic() + SETTLE_S
    while open_queries and time.monotonic() < until:
        open_queries = {each for each in open_queries if not watched.prometheus.query(each[1])}
        time.sleep(0.2)
    assert not open_queries
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", _filled_in(variable["definition"]))
        assert found is not None
        assert watched.prometheus.label_values(found[2], found[1])


def test_prometheus_keeps_the_exemplars_that_the_chart_of_latencies_shows(watched: Watched) -> None:
    queries = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
        if target.get("exemplar")
    ]
    assert queries
    for query in map(_filled_in, queries):
        until = time.monotonic() + SETTLE_S
        while not (found := watched.prometheus.exemplars(query)) and time.monotonic() < until:
            time.sleep(0.2)
        ids = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
        assert ids
        assert all(re.fullmatch("[0-9a-f]{32}", id) for id in ids)


def test_all_rules_are_evaluated_and_a_healthy_server_raises_no_alarm(watched: Watched) -> None:
    until = time.monotonic() + SETTLE_S
    while any(rule["health"] == "unknown" for rule in watched.prometheus.rules()) and time.monotonic() < until:
        time.sleep(0.2)
    rules = watched.prometheus.rules()
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    expected = {"SluiceRequestsRefused", "SluicePartitionNotEnforced"}
    # A busy machine may miss a scrape, for which an alert is pending until the next one.
    while _alarms(watched.prometheus) - expected and time.monotonic() < until:
        time.sleep(0.2)
    assert _alarms(watched.prometheus) <= expected


def _alarms(scraper: Prometheus) -> set[str]:
    """The alerts that are pending or fire."""
    return {rule["name"] for rule in scraper.rules() if rule["type"] == "alerting" and rule["state"] != "inactive"}


def test_promtool_has_no_complaint_about_metrics_that_are_not_named_by_triton(watched: Watched) -> None:
    text = watched.server.request("GET", "/metrics")[2]
    checked = subprocess.run(
        [require_tool("promtool"), "check", "metrics"], input=text, capture_output=True, check=False
    )
    complaints = (checked.stdout + checked.stderr).decode().splitlines()
    assert [line for line in complaints if not line.startswith("nv_")] == []


def test_every_metric_of_the_server_is_in_the_reference_with_its_help(watched: Watched) -> None:
    defined = {metric.name: metric.help for metric in metric_definitions()}
    assert all(text.endswith(".") for text in defined.values())
    seldom = {"sluice_batch_ceiling_rows", "sluice_partition_resizes_total"}
    wanted = {name for name in defined.keys() - seldom if not NOT_HERE.match(name)}
    until = time.monotonic() + SETTLE_S
    exposed: dict[str, str] = {}
    while not wanted <= exposed.keys() and time.monotonic() < until:  # the headroom comes with the first plan
        exposed = dict(re.findall(r"^# HELP (\w+) (.*)$", watched.server.request("GET", "/metrics")[2].decode(), re.M))
        time.sleep(0.2)
    assert wanted - exposed.keys() == set()
    assert exposed.items() <= defined.items()


def test_scrapes_of_both_ports_are_the_same_and_over_front_ends(watched: Watched) -> None:
    status, headers, text = watched.server.request("GET", "/metrics")
    assert (status, int(headers["content-length"])) == (200, len(text))
    assert b'sluice_process_cpu_seconds_total{process="front end 0"}' in text
    assert b'sluice_process_cpu_seconds_total{process="worker cpu0"}' in text
    (up,) = watched.prometheus.query('up{job="sluice"}')
    assert up["value"][1] == "1"
