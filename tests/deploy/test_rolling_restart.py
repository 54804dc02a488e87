"""Two servers behind a proxy are replaced one after the other under load, as Kubernetes does it: no request fails."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.gateway.server import GatewayServer, gateway_server, stop
from tests.support.haproxy import Proxy, haproxy
from tests.support.models.onnx_models import save_mlp

CLIENTS = 3
"""Clients of each protocol, each with one connection that it keeps."""
PAUSE_S = 0.02
CONFIG: dict[str, object] = {"partitions": 1, "default_slo_ms": 60_000, "drain_delay_s": 4, "drain_timeout_s": 20}
ROW = np.ones((1, 4), np.float32)


def http_client(proxy: Proxy) -> Callable[[], object]:
    client = triton_http.InferenceServerClient(proxy.http_url)
    tensor = triton_http.InferInput("x", ROW.shape, "FP32")
    tensor.set_data_from_numpy(ROW)
    return lambda: client.infer("mlp", [tensor])


def grpc_client(proxy: Proxy) -> Callable[[], object]:
    client = triton_grpc.InferenceServerClient(proxy.grpc_url)
    tensor = triton_grpc.InferInput("x", ROW.shape, "FP32")
    tensor.set_data_from_numpy(ROW)
    return lambda: client.infer("mlp", [tensor])


def ask_on(make: Callable[[Proxy], Callable[[], object]], proxy: Proxy, over: Event) -> Counter[str]:
    """The outcomes of the requests of a client that asks again and again, with their number."""
    ask = make(proxy)
    outcomes = Counter[str]()
    while not over.wait(PAUSE_S):
        try:
            ask()
        except Exception as error:
            outcomes[f"{type(error).__name__}: {error}"] += 1
        else:
            outcomes["answered"] += 1
    return outcomes


def test_no_request_fails_while_all_servers_are_replaced(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_mlp(repository / "mlp" / "1" / "model.onnx", [4, 2])
    over = Event()
    with ExitStack() as stack:
        proxy = stack.enter_context(haproxy(tmp_path))

        def started(slot: int, front_ends: int = 0) -> GatewayServer:
            directory = tmp_path / f"server-{slot}"
            directory.mkdir()
            config = {**CONFIG, "front_ends": front_ends}
            server = stack.enter_context(gateway_server(repository, directory, config))
            proxy.add(slot, server)
            return server

        running = [started(0), started(1, front_ends=1)]
        with ThreadPoolExecutor(2 * CLIENTS) as pool:
            asking = [
                pool.submit(ask_on, make, proxy, over) for make in (http_client, grpc_client) for _ in range(CLIENTS)
            ]
            try:
                for slot, old in enumerate(running, start=2):
                    started(slot)
                    assert stop(old.process) == 0
                    assert b"still serving" in old.log.read_bytes()
            finally:
                over.set()
        outcomes = [each.result() for each in asking]
    assert [set(each) for each in outcomes] == [{"answered"}] * len(outcomes), outcomes
