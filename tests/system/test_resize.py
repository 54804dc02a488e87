"""Partitions of a running server get another share of the machine under load: no request fails."""

import json
from pathlib import Path

import msgspec
import pytest

from sluice.batcher.drivers.journal import JournalStep, replay
from sluice.batcher.interface.decisions import ResizePartition
from sluice.batcher.interface.events import PartitionResized
from sluice.batcher.planner.live import LivePlanner
from sluice.gateway.cli.main import main
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.http_load import HttpLoad
from tests.support.gateway.processes import allowed_cores, children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_spin

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="a larger share needs a second core")

CORES = available_cores()[:2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    save_spin(tmp_path / "models" / "spin" / "1" / "model.onnx", 500, 50)
    return tmp_path / "models"


def config(**others: object) -> dict[str, object]:
    return {"partitions": [{"name": "cpu0", "cores": [CORES[0]]}], "max_batch_size": 8, **others}


def resize(server: GatewayServer, partition: str, **share: object) -> tuple[int, dict[str, object]]:
    path = f"/v2/sluice/partitions/{partition}/resize"
    status, _, body = server.request("POST", path, json.dumps(share).encode())
    return status, json.loads(body)


def workers(server: GatewayServer) -> dict[int, set[str]]:
    return {pid: allowed_cores(pid) for pid in children(server.process.pid)}


def until_one_is_left(server: GatewayServer) -> set[str]:
    """The cores of the one worker, once those before it have ended."""
    until(lambda: len(children(server.process.pid)) == 1)
    (worker,) = children(server.process.pid)
    return allowed_cores(worker)


def until_more_is_sent(load: HttpLoad) -> None:
    before = len(load.sent)
    until(lambda: len(load.sent) > before + 70)


def test_a_partition_grows_and_shrinks_under_load_without_a_failed_request(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "run.journal"
    with gateway_server(repository, tmp_path, config(), ["--journal", str(journal)]) as server:
        load = HttpLoad(server.http_port, "spin", clients=8, rate=160)
        with load.running():
            until_more_is_sent(load)
            (before,) = children(server.process.pid)
            status, partition = resize(server, "cpu0", cores=list(CORES))
            assert (status, partition["cores"]) == (200, list(CORES)), partition
            assert until_one_is_left(server) == {f"{CORES[0]}-{CORES[1]}"}
            (grown,) = children(server.process.pid)
            until_more_is_sent(load)
            url = f"http://{server.http_url}"
            assert main(["partitions", "resize", "cpu0", "--cores", str(CORES[1]), "--url", url]) == 0
            assert until_one_is_left(server) == {str(CORES[1])}
            until_more_is_sent(load)
        _, _, body = server.request("GET", "/v2/sluice/partitions")
        (state,) = json.loads(body)["partitions"]
    assert load.failures == []
    assert capsys.readouterr().out == f"cpu0: serves on cores {CORES[1]}\n"
    assert (state["partition"]["cores"], state["profile_kind"]) == ([CORES[1]], "cpu1")
    assert before != grown
    lines = journal.read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=JournalStep).event for line in lines[1:]]
    resized = [event for event in events if isinstance(event, PartitionResized)]
    assert [(event.kind, list(event.tables)) for event in resized] == [("cpu2", ["spin:1"]), ("cpu1", ["spin:1"])]
    assert replay(lines, LivePlanner()) is None
    log = server.log.read_text()
    assert log.count("partition resized") == 2
    assert "worker lost" not in log
    assert "Traceback" not in log


def test_what_cannot_be_had_is_refused_and_the_partition_serves_on(repository: Path, tmp_path: Path) -> None:
    both = [{"name": f"cpu{number}", "cores": [core]} for number, core in enumerate(CORES)]
    with gateway_server(repository, tmp_path, config(partitions=both)) as server:
        before = workers(server)
        status, refusal = resize(server, "cpu0", cores=list(CORES))
        reason = f"partition cpu0: core {CORES[1]} already belongs to partition cpu1"
        assert (status, refusal) == (409, {"error": reason})
        assert workers(server) == before


def test_a_new_worker_that_cannot_load_a_model_leaves_the_one_before_serving(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, config()) as server:
        (before,) = children(server.process.pid)
        file = repository / "spin" / "1" / "model.onnx"
        sound = file.read_bytes()
        file.write_bytes(b"this is no model any more")
        load = HttpLoad(server.http_port, "spin", clients=2, rate=40)
        with load.running():
            status, refusal = resize(server, "cpu0", cores=list(CORES))
            assert status == 503
            assert str(refusal["error"]).startswith("partition cpu0 stays as it is: model spin:1 does not load there: ")
            assert until_one_is_left(server) == {str(CORES[0])}
            assert children(server.process.pid) == [before]
        file.write_bytes(sound)
        assert resize(server, "cpu0", cores=list(CORES))[0] == 200
    assert load.failures == []


def test_a_busy_partition_is_lent_a_free_core_and_gives_it_back_when_it_is_idle(
    repository: Path, tmp_path: Path
) -> None:
    # A batch takes far longer than clients take to send the next one, however busy the machine is.
    save_spin(repository / "spin" / "1" / "model.onnx", 10_000, 50)
    journal = tmp_path / "run.journal"
    eager = {"every_s": 0.2, "pause_s": 0.5, "busy": 0.4, "idle": 0.1}
    with gateway_server(repository, tmp_path, config(resize=eager), ["--journal", str(journal)]) as server:
        load = HttpLoad(server.http_port, "spin", clients=16, rate=800)
        with load.running():
            cores_become(server, list(CORES))
        cores_become(server, [CORES[0]])
    assert load.failures == []
    lines = journal.read_bytes().splitlines()
    decisions = [each for line in lines[1:] for each in msgspec.json.decode(line, type=JournalStep).decisions]
    orders = [each for each in decisions if isinstance(each, ResizePartition)]
    lent, given_back = ((CORES[0],), CORES, "busy"), (CORES, (CORES[0],), "idle")
    # Once, or more often if the clients stand still for long.
    assert orders
    assert [(each.before, each.held, each.reason) for each in orders] == [lent, given_back] * (len(orders) // 2)
    assert replay(lines, LivePlanner()) is None


def cores_become(server: GatewayServer, cores: list[int]) -> None:
    def partition() -> dict[str, object]:
        (state,) = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
        found: dict[str, object] = state["partition"]
        return found

    until(lambda: partition()["cores"] == cores)
