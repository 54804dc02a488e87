"""Prints what follows a step of the load by ten at a real gateway with real worker servers, whose model only sleeps.

Each of 8 workers takes 10 requests a second. 5 a second come for 20 s, then 50 for 40 s, then 5 again. It takes four
minutes.

    python -m scripts.autoscaling.live
"""

import json
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.gateway.remote_workers import cluster
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

WORKERS = 8
SERVICE_MS = 100.0
PHASES = ((20, 5), (60, 50), (220, 5))
"""(seconds until when, requests a second)."""
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
SHOWN = ("wanted", "ready", "panic")


def play(gateway: GatewayServer) -> None:
    """Send the requests, and print the numbers of partitions whenever they change."""
    statuses: Counter[int] = Counter()
    slowest_s = 0.0
    threads: list[threading.Thread] = []
    shown: dict[str, Any] = {}

    def infer() -> None:
        nonlocal slowest_s
        sent_s = time.monotonic()
        statuses[gateway.request("POST", "/v2/models/sleeper/infer", BODY)[0]] += 1
        slowest_s = max(slowest_s, time.monotonic() - sent_s)

    began_s = due_s = looked_s = time.monotonic()
    for until_s, rate in PHASES:
        print(f"{time.monotonic() - began_s:6.1f} s  {rate} requests a second")
        while (now_s := time.monotonic()) < began_s + until_s:
            if now_s >= looked_s:
                looked_s = now_s + 0.25
                status = json.loads(gateway.request("GET", "/v2/sluice/scaling")[2])["classes"]["edge"]
                if shown != (shown := {key: status[key] for key in SHOWN}):
                    print(f"{now_s - began_s:6.1f} s  " + ", ".join(f"{key} {value}" for key, value in shown.items()))
            if now_s >= due_s:
                threads.append(threading.Thread(target=infer))
                threads[-1].start()
                due_s += 1 / rate
            time.sleep(max(min(due_s, looked_s) - time.monotonic(), 0.0))
    for thread in threads:
        thread.join()
    print(f"answers by status: {dict(statuses)}, the slowest after {slowest_s:.1f} s")


def main() -> None:
    """Run the workers and the gateway, and the load against them."""
    with tempfile.TemporaryDirectory() as path:
        directory, models = Path(path), Path(path) / "models"
        models.mkdir()
        save_timed(models, "sleeper", {1: SERVICE_MS}, max_batch_size=1)
        with cluster(directory, WORKERS) as workers:
            config: Any = workers.config()
            config["partitions"]["remote"][0]["scale"] = {"min": 1, "start_s": 1}
            with gateway_server(models, directory, config | {"default_slo_ms": 20_000}) as gateway:
                play(gateway)


if __name__ == "__main__":
    main()
