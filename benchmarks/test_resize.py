"""A resize from the client's side: latencies in windows of 250 ms before, during and after it, under steady load."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.conftest import Report
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.http_load import HttpLoad, percentiles_ms
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp

RATE = 100
WINDOW_S = 0.25
CALM_S = 2.0


@pytest.mark.skipif(len(available_cores()) < 2, reason="a larger share needs a second core")
def test_latencies_while_a_partition_is_resized(tmp_path: Path, report: Report) -> None:
    first, second = available_cores()[:2]
    save_mlp(tmp_path / "models" / "wide" / "1" / "model.onnx", [64, 1024, 1024, 10])
    config: dict[str, object] = {"partitions": [{"name": "cpu0", "cores": [first]}], "max_batch_size": 16}
    with gateway_server(tmp_path / "models", tmp_path, config) as server:
        for cores in ([first, second], [first]):
            trace(server, cores, report)


def trace(server: GatewayServer, cores: list[int], report: Report) -> None:
    """Resize in the middle of a run; report the latencies of every window."""
    load = HttpLoad(server.http_port, "wide", clients=16, rate=RATE)
    with load.running():
        time.sleep(CALM_S)
        began_s = time.monotonic()
        path = "/v2/sluice/partitions/cpu0/resize"
        status, _, body = server.request("POST", path, json.dumps({"cores": cores}).encode())
        took_s = time.monotonic() - began_s
        assert status == 200, body
        time.sleep(CALM_S)
    what = f"resize to {len(cores)} cores"
    report(f"{what}: until the new worker serves", f"{took_s:.2f} s", "")
    report(f"{what}: requests that failed", f"{len(load.failures)} of {len(load.sent)}", "0")
    for window in range(-round(CALM_S / WINDOW_S), round((took_s + CALM_S) / WINDOW_S)):
        at_s = began_s + window * WINDOW_S
        sent = [each for each in load.sent if at_s <= each.due_s < at_s + WINDOW_S]
        p50, p99 = percentiles_ms(sent, 50, 99)
        when = "before" if window < 0 else "during" if window * WINDOW_S < took_s else "after"
        report(f"{what}: {when}, {window * WINDOW_S:+.2f} s", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", "")
    assert load.failures == []
