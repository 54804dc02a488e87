import json
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.papers.engines import live_loads, live_shares
from sluice.mps.partitions.cpu import available_cores


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts of these runs are not those of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_an_experiment_measures_a_server_of_its_own(tmp_path: Path) -> None:
    document, page = tmp_path / "found.json", tmp_path / "page.md"
    assert main(["paper", "run", "pipelines", "--quick", "--json", str(document), "--out", str(page)]) in (0, 2)
    (experiment,) = json.loads(document.read_bytes())["experiments"]
    assert [each["published"] for each in experiment["findings"][:4]] == ["0.629", "0.709"] * 2
    assert min(float(each["ours"].split()[0]) for each in experiment["findings"][:6]) > 0
    assert [each["verdict"] for each in experiment["findings"][6:]] == ["met", "met"], "objects, played and live"
    lines = [
        line.split(" | ") for line in page.read_text().splitlines() if line.startswith(("| ensemble", "| cascade"))
    ]
    asked = {(pipeline.removeprefix("| "), tensors): number for pipeline, tensors, _, number, *_ in lines}
    assert asked["ensemble", "in JSON"] == "3.00", "the client asks for three models"
    assert asked["cascade", "in binary"] == "2.33", "a third of the images goes on to a third one"


def test_a_server_whose_accelerator_is_emulated_refuses_a_share_that_another_has(tmp_path: Path) -> None:
    document = tmp_path / "found.json"
    assert main(["paper", "run", "knix", "--quick", "--json", str(document)]) == 0
    (experiment,) = json.loads(document.read_bytes())["experiments"]
    (refusal,) = (each["ours"] for each in experiment["findings"] if each["gate"] == "409 with the numbers")
    assert refusal.startswith("409: GPU-")
    assert refusal.endswith(": 120 % are requested (50 % for share1, 70 % for share0), 100 % are free")


def test_cores_are_measured_on_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_shares, "CHANNELS", (8, 8))  # a small network
    times = live_shares.share_core(tmp_path, available_cores()[0], batches=2)
    for worker_s, client_s in zip(times.in_worker.shared_s, times.at_client.shared_s, strict=True):
        assert 0 < worker_s < client_s, "the client's time has the way to the worker"
    assert times.in_worker.bare_s == times.at_client.bare_s
    assert all(time_s > 0 for time_s in times.in_worker.bare_s)


def test_loads_are_measured_on_two_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_loads, "WEIGHTS", 8)
    with live_shares.emulated_gpu(tmp_path) as share:
        times = live_loads.time_loads(tmp_path, share("share0", 50), live_loads.save_python, rounds=1)
    assert [len(each) for each in (times.shared_s, times.same_s, times.other_s)] == [1, 1, 1]
    assert all(time_s > 0 for time_s in (*times.shared_s, *times.same_s, *times.other_s))
