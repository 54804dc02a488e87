"""A step of the load by ten at a real gateway with real worker servers, whose model only sleeps: what follows, and when.

pytest -s benchmarks/test_autoscaling.py
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway.remote_workers import cluster
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

WORKERS = 4
PHASES = ((20, 2), (60, 20), (230, 2))
"""(seconds until when, requests a second); a worker takes 10 a second."""
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    models = tmp_path / "models"
    models.mkdir()
    save_timed(models, "sleeper", {1: 100.0}, max_batch_size=1)
    with cluster(tmp_path, WORKERS) as workers:
        config: Any = workers.config()
        config["partitions"]["remote"][0]["scale"] = {"min": 1, "start_s": 1}
        with gateway_server(models, tmp_path, config | {"default_slo_ms": 20_000}) as server:
            yield server


def test_a_step_by_ten(gateway: GatewayServer) -> None:
    statuses: Counter[int] = Counter()
    lines: list[tuple[float, dict[str, Any]]] = []
    threads: list[threading.Thread] = []

    def infer() -> None:
        statuses[gateway.request("POST", "/v2/models/sleeper/infer", BODY)[0]] += 1

    def look() -> None:
        status = json.loads(gateway.request("GET", "/v2/sluice/scaling")[2])["classes"]["edge"]
        shown = {key: status[key] for key in ("wanted", "ready", "panic")}
        if not lines or lines[-1][1] != shown:
            lines.append((time.monotonic() - began_s, shown))

    began_s = due_s = time.monotonic()
    for until_s, rate in PHASES:
        while (now_s := time.monotonic()) < began_s + until_s:
            look()
            if now_s >= due_s:
                threads.append(threading.Thread(target=infer))
                threads[-1].start()
                due_s += 1 / rate
            time.sleep(max(min(due_s - time.monotonic(), 0.2), 0.0))
    for thread in threads:
        thread.join()
    print()
    for at_s, shown in lines:
        print(f"{at_s:6.1f} s  {shown}")
    print(f"answers by status: {dict(statuses)}")
    panicked_s = next(at_s for at_s, shown in lines if shown["panic"])
    assert PHASES[0][0] < panicked_s < PHASES[0][0] + 6
    assert max(shown["ready"] for _, shown in lines) >= 3
    assert lines[-1][1] == {"wanted": 1, "ready": 1, "panic": False}
    assert statuses.keys() == {200}
