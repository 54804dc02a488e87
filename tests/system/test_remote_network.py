"""Remote partitions over a network that is slow, loses packets, or is cut: nothing is lost, and waits are bounded."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluice.mps.partitions.cpu import available_cores
from tests.support.certificates import certificate
from tests.support.gateway.http_load import HttpLoad
from tests.support.gateway.network import Network, Way, network
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.gateway.worker_server import worker_server
from tests.support.models.onnx_models import save_mlp

PORT = 9001
NODES = {"edge-0": 1, "edge-1": 1, "edge-2": 2, "edge-3": 2}
"""The nodes of the slots; `edge-3` is another address of the second node, where no worker is at first."""
SOON_S = 60.0

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="network namespaces and TUN devices need root"
)


class Served(NamedTuple):
    """A gateway on this machine, and workers on two nodes of their own, which know each other by certificates."""

    gateway: GatewayServer
    network: Network
    stack: ExitStack
    directory: Path

    def start_worker(self, slot: str) -> Any:
        """Start the worker of a slot."""
        node, number = NODES[slot], int(slot[-1])
        address = self.network.address(node, 1 + number)
        directory = self.directory / slot
        directory.mkdir(exist_ok=True)
        cores = available_cores()
        arguments = [
            *("--name", slot, "--node", f"n{node}", "--listen", f"{address}:{PORT}"),
            *("--cores", str(cores[number % len(cores)]), "--cache", str(self.directory / "cache")),
            *("--key-file", str(self.directory / "key"), "--tls-ca", str(self.directory / "ca.pem")),
            *("--tls-certificate", str(self.directory / "worker.pem")),
            *("--tls-private-key", str(self.directory / "worker.key")),
        ]
        return self.stack.enter_context(worker_server(directory, arguments, self.network.within(node)))

    def report(self) -> dict[str, dict[str, Any]]:
        """The partitions by name."""
        body = self.gateway.request("GET", "/v2/sluice/partitions")[2]
        return {each["partition"]["name"]: each for each in json.loads(body)["partitions"]}

    def up(self) -> set[str]:
        """The partitions that have workers."""
        return {name for name, each in self.report().items() if each["worker"] is not None}

    def wait_up(self, *slots: str) -> None:
        """Wait until exactly these slots have workers."""
        until(lambda: self.up() == set(slots), SOON_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("network")
    save_mlp(directory / "models" / "mlp" / "1" / "model.onnx", [64, 8])
    (directory / "key").write_text("open-sesame")
    certificate(directory, "ca")
    for name in ("gateway", "worker"):
        certificate(directory, name, "ca")
    tls = {
        "ca": str(directory / "ca.pem"),
        "certificate": str(directory / "gateway.pem"),
        "private_key": str(directory / "gateway.key"),
        "server_name": "localhost",
    }
    with network(2) as made, ExitStack() as stack:
        before = Served(None, made, stack, directory)  # type: ignore[arg-type]
        for slot in ("edge-0", "edge-1", "edge-2"):
            before.start_worker(slot)
        urls = [f"{made.address(node, 1 + number)}:{PORT}" for number, node in enumerate(NODES.values())]
        config: dict[str, object] = {
            "partitions": {
                "remote": [{"name": "edge", "kind": "cpu1", "urls": urls}],
                "key_file": str(directory / "key"),
                "tls": tls,
            },
            "default_slo_ms": 30_000,
        }
        gateway = stack.enter_context(gateway_server(directory / "models", directory, config))
        yield before._replace(gateway=gateway)


@pytest.fixture(autouse=True)
def whole(served: Served) -> Iterator[None]:
    """Begin with a network that is whole, and the first three workers up."""
    served.network.mend()
    served.wait_up("edge-0", "edge-1", "edge-2")
    yield
    served.network.mend()


def load_on(served: Served) -> HttpLoad:
    return HttpLoad(served.gateway.http_port, "mlp", clients=6, rate=40)


def test_a_slow_network_takes_time_and_the_gateway_knows_how_much(served: Served) -> None:
    load = load_on(served)
    with load.running():
        served.network.to[2] = served.network.back[2] = Way(0.03)
        until(lambda: len(load.sent) > 60)
        # Round trips are the quickest of the last ones: those of before have to go first.
        until(lambda: served.report()["edge-2"]["link"]["round_trip_ms"] > 50, SOON_S)
        assert served.report()["edge-0"]["link"]["round_trip_ms"] < 50
    assert load.failures == []
    assert served.up() == {"edge-0", "edge-1", "edge-2"}


def test_a_network_that_loses_packets_loses_no_request(served: Served) -> None:
    load = load_on(served)
    with load.running():
        for node in (1, 2):
            served.network.to[node] = served.network.back[node] = Way(loss=0.03)
        until(lambda: len(load.sent) > 120)
    assert load.failures == []


@pytest.mark.parametrize(("to", "back"), [(True, True), (True, False), (False, True)], ids=["both", "to", "back"])
def test_a_node_that_is_cut_off_is_lost_with_its_partitions_and_comes_back(
    served: Served, to: bool, back: bool
) -> None:
    load = load_on(served)
    with load.running():
        until(lambda: len(load.sent) > 20)
        served.network.cut(1, to=to, back=back)
        served.wait_up("edge-2")
        log = served.gateway.log.read_text()
        already = len(load.sent)
        until(lambda: len(load.sent) > already + 30)
        served.network.mend()
        served.wait_up("edge-0", "edge-1", "edge-2")
    assert load.failures == []
    lost = [line for line in log.splitlines() if "worker lost" in line][-2:]
    reasons = {line.partition(" reason=")[2].partition(" node=")[0] for line in lost}
    assert len(reasons) == 1, "both are lost for one reason"
    assert next(iter(reasons)).startswith("node n1: its 2 workers are gone: ")


def test_a_worker_that_is_started_again_at_another_address_fills_the_slot_of_that(served: Served) -> None:
    """The last test: the worker stays there."""
    load = load_on(served)
    with load.running():
        until(lambda: len(load.sent) > 20)
        served.network.cut(2)
        served.wait_up("edge-0", "edge-1")
        served.network.mend()
        worker = served.start_worker("edge-3")
        until(lambda: "edge-3" in served.up(), SOON_S)
    assert load.failures == []
    worker.process.terminate()
    worker.process.wait()
    until(lambda: "edge-3" not in served.up(), SOON_S)
