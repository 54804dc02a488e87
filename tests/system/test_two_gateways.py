"""Two gateways share the workers behind a name: each has its part, and no request fails while either side changes."""

import http.client
import json
import os
import signal
import threading
import time
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
from tests.support.haproxy import haproxy
from tests.support.models.onnx_models import save_mlp
from tests.support.tools import require_tool
from tests.support.triton.server import free_ports

NAME = "workers.test"
WORKERS = 4
CLIENTS = 4
PAUSE_S = 0.02
MORE_TRIES, TRY_PAUSE_S = 20, 0.1
"""Far more than the proxy needs to find that a gateway has died."""
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
            *("--cores", str(cores[number % len(cores)]), "--drain-s", "20", "--cache", str(self._directory / "cache")),
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

    def is_in_use(self, number: int) -> bool:
        about = survey(self.running[number].url, "", None).about
        return bool(about.holder and about.models)

    def _address(self, number: int) -> str:
        return f"127.0.0.{10 + number}"

    def _publish(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{self._address(number)} {NAME}" for number in self.running)]
        self.hosts.write_text("\n".join(lines) + "\n")


class Site:
    """Two gateways behind a proxy, and their workers."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.pods = Pods(directory)
        self.gateways: list[GatewayServer] = []
        self.proxy = stack.enter_context(haproxy(directory))
        self._directory = directory
        self._stack = stack
        self._started = 0
        stack.callback(self.pods.close)
        for number in range(WORKERS):
            self.pods.start(number)

    def start_gateway(self) -> None:
        """Start a gateway, and wait until the proxy passes connections to it."""
        # A file of hosts of its own, which the resolver of the system reads as it asks DNS.
        rights = [] if os.geteuid() == 0 else ["--map-root-user"]
        script = f'mount --bind {self.pods.hosts} /etc/hosts && exec "$@"'
        launcher = [require_tool("unshare"), "--mount", *rights, "sh", "-c", script, "sh"]
        dns = {"name": NAME, "port": self.pods.port, "max": WORKERS}
        config: dict[str, object] = {
            "partitions": {"remote": [{"name": "edge", "kind": "cpu1", "dns": dns}]},
            "default_slo_ms": 60_000,
            "drain_delay_s": 4,
            "drain_timeout_s": 20,
        }
        place = self._directory / f"gateway{self._started}"
        place.mkdir()
        made = gateway_server(self._directory / "models", place, config, launcher=launcher)
        gateway = self._stack.enter_context(made)
        self.proxy.add(self._started, gateway)
        self._started += 1
        self.gateways.append(gateway)

    def is_shared(self) -> bool:
        holders = self.pods.holders()
        return "" not in holders and sorted(holders.values()) == [WORKERS // 2] * 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    save_mlp(directory / "models" / "mlp" / "1" / "model.onnx", [4, 2])
    with ExitStack() as stack:
        made = Site(directory, stack)
        for _ in range(2):
            made.start_gateway()
        yield made


def ask(connection: http.client.HTTPConnection) -> str:
    """The outcome of a request: `answered`, or what a client sees of the failure."""
    connection.request("POST", "/v2/models/mlp/infer", BODY)
    response = connection.getresponse()
    body = response.read()
    return "answered" if response.status == 200 else f"{response.status} {body.decode()}"


class Clients:
    """Clients that ask through the proxy; with `again`, up to MORE_TRIES times more, on new connections, if one fails.

    The proxy passes connections to a gateway that has died until its next check has found that.
    """

    def __init__(self, site: Site, *, again: bool = False) -> None:
        self.outcomes = Counter[str]()
        self._site = site
        self._again = again
        self._over = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _run(self) -> None:
        connection = self._connect()
        while not self._over.wait(PAUSE_S):
            for tries_left in reversed(range(1 + MORE_TRIES * self._again)):
                try:
                    outcome = ask(connection)
                    break
                except (OSError, http.client.HTTPException) as error:
                    outcome = repr(error)
                    connection.close()
                    connection = self._connect()
                    if tries_left:
                        time.sleep(TRY_PAUSE_S)
            with self._lock:
                self.outcomes[outcome] += 1
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._site.proxy.http_url, timeout=60)


def test_each_gateway_has_its_part_of_the_workers(site: Site) -> None:
    until(site.is_shared)
    for each in site.gateways:
        assert each.request("POST", "/v2/models/mlp/infer", BODY)[0] == 200


def test_no_request_fails_while_all_workers_are_replaced(site: Site) -> None:
    clients = Clients(site)
    with clients.running():
        for number in range(WORKERS):
            assert site.pods.stop(number) == 0
            site.pods.start(WORKERS + number)
            until(lambda number=number: site.pods.is_in_use(WORKERS + number))  # type: ignore[misc]
    assert set(clients.outcomes) == {"answered"}, clients.outcomes
    until(site.is_shared)


def test_no_request_fails_while_all_gateways_are_replaced(site: Site) -> None:
    clients = Clients(site)
    with clients.running():
        for _ in range(2):
            site.start_gateway()
            assert stop(site.gateways.pop(0).process) == 0
    assert set(clients.outcomes) == {"answered"}, clients.outcomes
    until(site.is_shared)


def test_a_paused_gateway_loses_its_workers_and_gets_its_part_again(site: Site) -> None:
    clients = Clients(site, again=True)
    with clients.running():
        until(lambda: clients.outcomes["answered"] > 20)
        site.gateways[0].process.send_signal(signal.SIGSTOP)
        until(lambda: list(site.pods.holders().values()) == [WORKERS])
        site.gateways[0].process.send_signal(signal.SIGCONT)
        until(site.is_shared)
    assert set(clients.outcomes) == {"answered"}, clients.outcomes


def test_the_workers_of_a_killed_gateway_serve_for_the_other(site: Site) -> None:
    clients = Clients(site, again=True)
    with clients.running():
        until(lambda: clients.outcomes["answered"] > 20)
        site.gateways[0].process.kill()
        until(lambda: list(site.pods.holders().values()) == [WORKERS])
        served = clients.outcomes["answered"]
        until(lambda: clients.outcomes["answered"] > served + 20)
    assert set(clients.outcomes) == {"answered"}, clients.outcomes
