"""Two gateways share the workers behind a name: each has its part, and no request fails while either side changes."""

import http.client
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sluice.gateway.worker_protocol.about import survey
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server, stop
from tests.support.gateway.worker_server import WorkerProcess, worker_server
from tests.support.models.onnx_models import save_mlp
from tests.support.tools import require_tool
from tests.support.triton.server import free_ports

NAME = "workers.test"
WORKERS = 4
CLIENTS = 4
PAUSE_S = 0.02
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}).encode()


class Pods:
    """Worker servers at addresses of their own, one port for all, and the file that resolves `NAME` to them."""

    def __init__(self, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self.running: dict[int, WorkerProcess] = {}
        self.hosts = directory / "hosts"
        self._directory = directory
        self._stack = ExitStack()
        self._publish()

    def start(self, number: int) -> None:
        directory = self._directory / f"pod{number}"
        directory.mkdir()
        cores = available_cores()
        arguments = [
            *("--listen", f"{self._address(number)}:{self.port}", "--name", f"pod{number}", "--node", f"n{number % 2}"),
            *("--cores", str(cores[number % len(cores)]), "--drain-s", "20"),
        ]
        self.running[number] = self._stack.enter_context(worker_server(directory, arguments))
        self._publish()

    def stop(self, number: int) -> int:
        """End a worker as Kubernetes ends a pod: it is listed no more, and gets SIGTERM."""
        pod = self.running.pop(number)
        self._publish()
        return stop(pod.process)

    def close(self) -> None:
        self._stack.close()

    def holders(self) -> Counter[str]:
        """The gateways that have leases ("": none), with the numbers of their workers."""
        return Counter(survey(each.url, "", None).about.holder for each in self.running.values())

    def is_leased(self, number: int) -> bool:
        about = survey(self.running[number].url, "", None).about
        return bool(about.holder and about.models)

    def _address(self, number: int) -> str:
        return f"127.0.0.{10 + number}"

    def _publish(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{self._address(number)} {NAME}" for number in self.running)]
        self.hosts.write_text("\n".join(lines) + "\n")


class Site:
    """The gateways and their workers."""

    def __init__(self, gateways: list[GatewayServer], pods: Pods) -> None:
        self.gateways = gateways
        self.pods = pods

    def is_shared(self) -> bool:
        return sorted(self.pods.holders().values()) == [WORKERS // 2] * 2 and "" not in self.pods.holders()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    save_mlp(directory / "models" / "mlp" / "1" / "model.onnx", [4, 2])
    pods = Pods(directory)
    # A file of hosts of its own, which the resolver of the system reads as it does DNS.
    script = f'mount --bind {pods.hosts} /etc/hosts && exec "$@"'
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    launcher = [require_tool("unshare"), "--mount", *rights, "sh", "-c", script, "sh"]
    dns = {"name": NAME, "port": pods.port, "max": WORKERS}
    config: dict[str, object] = {"partitions": {"remote": [{"name": "edge", "kind": "cpu1", "dns": dns}]}}
    with ExitStack() as stack:
        stack.callback(pods.close)
        for number in range(WORKERS):
            pods.start(number)
        gateways = []
        for name in ("a", "b"):
            place = directory / name
            place.mkdir()
            gateways.append(stack.enter_context(gateway_server(directory / "models", place, config, launcher=launcher)))
        yield Site(gateways, pods)


def ask(gateway: GatewayServer) -> str:
    """The outcome of a request: `answered`, or what a client sees of the failure."""
    status, _, body = gateway.request("POST", "/v2/models/mlp/infer", BODY)
    return "answered" if status == 200 else f"{status} {body.decode()}"


class Clients:
    """Clients that ask one gateway after the other, and the other one at once if the connection to one fails."""

    def __init__(self, gateways: list[GatewayServer]) -> None:
        self.outcomes = Counter[str]()
        self._gateways = gateways
        self._over = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _run(self, turn: int) -> None:
        while not self._over.wait(PAUSE_S):
            turn += 1
            try:
                outcome = ask(self._gateways[turn % 2])
            except (OSError, http.client.HTTPException):
                outcome = ask(self._gateways[(turn + 1) % 2])
            with self._lock:
                self.outcomes[outcome] += 1


def test_each_gateway_has_its_part_of_the_workers(site: Site) -> None:
    until(site.is_shared)
    assert [ask(each) for each in site.gateways] == ["answered"] * 2


def test_no_request_fails_while_all_workers_are_replaced(site: Site) -> None:
    until(site.is_shared)
    clients = Clients(site.gateways)
    with clients.running():
        for number in range(WORKERS):
            assert site.pods.stop(number) == 0
            site.pods.start(WORKERS + number)
            until(lambda number=number: site.pods.is_leased(WORKERS + number))  # type: ignore[misc]
    assert set(clients.outcomes) == {"answered"}, clients.outcomes
    until(site.is_shared)


def test_the_workers_of_a_killed_gateway_serve_for_the_other(site: Site) -> None:
    until(site.is_shared)
    killed, left = site.gateways
    clients = Clients(site.gateways)
    with clients.running():
        until(lambda: clients.outcomes["answered"] > 20)
        killed.process.kill()
        until(lambda: list(site.pods.holders().values()) == [WORKERS])
    assert set(clients.outcomes) == {"answered"}, clients.outcomes
    assert ask(left) == "answered"
