"""A server whose memory one model would take: the others are served all the same."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path

from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

MIB = 1 << 20
CONFIG = {"partitions": 2, "default_slo_ms": 60_000, "limits": {"memory_mb": 16}}


def infer(server: GatewayServer, model: str, nbytes: int, id: str = "") -> tuple[int, str]:
    """The status of a request with an input of that size, which is echoed, and the error."""
    tensor = {
        "name": "x",
        "shape": [1, nbytes // 4],
        "datatype": "FP32",
        "parameters": {"binary_data_size": nbytes},
    }
    head = json.dumps({"id": id, "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, _, body = server.request("POST", f"/v2/models/{model}/infer", head + bytes(nbytes), headers)
    return status, "" if status == 200 else json.loads(body)["error"]


def test_large_requests_to_a_slow_model_shut_out_no_other_model(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_timed(repository, "slow", {1: 1500, 8: 1500})
    save_timed(repository, "quick", {1: 1, 8: 1})
    with gateway_server(repository, tmp_path, CONFIG) as server:
        workers = children(server.process.pid)
        with ThreadPoolExecutor(13) as threads:
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            try:
                # Each takes 2 MiB with its output, and one of two models may have 12 of the 16 MiB.
                large = [threads.submit(infer, server, "slow", MIB) for _ in range(12)]
                refused = [each.result() for each in islice(as_completed(large), 6)]
                # As large as the part that is kept for this model.
                first = threads.submit(infer, server, "quick", 2 * MIB, "quick")
                until(lambda: first.done() or server.has_come("quick"))
            finally:
                for worker in workers:
                    os.kill(worker, signal.SIGCONT)
            small = [first.result(), *(infer(server, "quick", 2 * MIB) for _ in range(9))]
            answers = [each.result() for each in large]
        assert small == [(200, "")] * 10
        assert [status for status, _ in refused] == [503] * 6
        assert all(error.endswith("of 16777216 are free, 4194304 of them are kept for others") for _, error in refused)
        assert [status for status, _ in answers if status != 503] == [200] * 6
        # More than its part, when there is room.
        assert infer(server, "quick", 6 * MIB) == (200, "")
        status, error = infer(server, "quick", 7 * MIB)
        assert (status, error) == (
            400,
            "the tensors of the request need 14680064 bytes, but the limit for all requests of a pipeline together is "
            "12582912 bytes",
        )
