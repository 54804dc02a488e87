"""The comparison with other servers: what is kept of a run, and the page that is written from it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.document import Median, document, median_of
from benchmarks.peers.peer import PEERS
from benchmarks.peers.results import OtherRun, Results
from benchmarks.peers.wire import BENTO_LIST, LIT_BASE64, LIT_LIST, TENSOR, V2_BASE64, V2_LIST

SETTINGS = {"rounds": 5, "quick": False, "slo_ms": 50, "percentile": 95, "machine": "2 cores, a processor"}


def entry(number: int, peer: str, rate: float | None, cpu_us: float = 100.0, p50_ms: float = 1.0) -> dict[str, Any]:
    """The figures of one model of a server in a round."""
    fixed = [{"rate": 200, "p50_ms": 1.0, "p99_ms": 2.0, "in_time": 1.0, "cpu_us": 50.0, "client_late": False}] * 2
    highest = {"rate": rate, "client_limited": False, "probes": 5}
    crowded = {"rate": 4000.0, "cpu_us": cpu_us}
    measured = {"crowded": crowded, "alone": {"p50_ms": p50_ms, "p99_ms": 2.0}, "fixed": fixed, "highest": highest}
    return {
        "round": number,
        "peer": peer,
        "load": 1.5 + number,
        "models": {"mlp": {"http": measured}},
        "memory_mb": 200.0,
        "start_s": 3.0,
    }


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "peers.json", SETTINGS)
    found.peers = {"sluice": {"version": "0.1.0"}, "fastapi": {"version": "0.165.0"}, "triton": {"failed": "no wheel"}}
    for number, (ours, theirs) in enumerate([(5000, 1000), (5200, 1100), (4800, None)], 1):
        found.add(entry(number, "sluice", ours, p50_ms=0.4))
        found.add(entry(number, "fastapi", theirs, cpu_us=300.0, p50_ms=0.2))
    return found


def test_a_run_goes_on_from_its_file(results: Results, tmp_path: Path) -> None:
    again = Results(tmp_path / "peers.json", SETTINGS)
    assert again.entries == results.entries
    assert again.has(3, "sluice")
    assert not again.has(4, "sluice")
    assert again.values("fastapi", "mlp", "http", "highest", "rate") == [1000, 1100]
    assert again.values("fastapi", "mlp", "grpc", "highest", "rate") == []
    assert again.values("sluice", "mlp", "http", "fixed", 1, "cpu_us") == [50, 50, 50]


def test_figures_of_other_settings_are_not_mixed_in(results: Results, tmp_path: Path) -> None:
    with pytest.raises(OtherRun, match=r"peers.json: measured with .*'slo_ms': 50.*; remove it to begin again"):
        Results(tmp_path / "peers.json", SETTINGS | {"slo_ms": 20})


def test_a_median_has_the_interval_of_its_rounds() -> None:
    assert median_of([]) is None
    assert median_of([7.0]) == Median(7.0, 7.0, 7.0)
    found = median_of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found is not None
    assert found.value == 3.0
    assert found.low in (1.0, 2.0)
    assert found.high in (4.0, 100.0)


def test_the_page_has_figures_losses_and_what_is_not_installed(results: Results) -> None:
    page = document(results)
    lines = page.splitlines()
    assert "| Sluice | 5 000 [4 800, 5 200] | - | - | - | - |" in lines
    assert "| FastAPI | 1 050 [1 000, 1 100] | - | - | - | - |" in lines
    assert "Not measured: Triton: no wheel" in lines
    assert "Not measured: Ray Serve: its turn has not come yet." in lines
    assert "So far 3 of 5 rounds have figures; the same command goes on from there." in page
    assert "load average was 2.5 to 4.5" in page
    losses = [line for line in lines if line.startswith("- ")]
    assert losses == ["- `mlp`, HTTP, p50 of one client: Sluice 0.40; FastAPI 0.20 (intervals apart)"]


def test_a_round_that_failed_is_named_with_its_reason(results: Results) -> None:
    results.add({"round": 4, "peer": "fastapi", "load": 1.0, "failed": "mlp over http: no answer\nlog"})
    assert "Not measured: FastAPI, round 4: mlp over http: no answer" in document(results).splitlines()


def test_a_failure_is_tried_again(results: Results) -> None:
    results.add({"round": 4, "peer": "fastapi", "load": 1.0, "failed": "mlp over http: no answer"})
    assert not results.has(4, "fastapi")
    results.add(entry(4, "fastapi", 1200))
    assert results.has(4, "fastapi")
    assert [each["round"] for each in results.entries if each["peer"] == "fastapi"] == [1, 2, 3, 4]


def test_every_server_has_its_packages_pinned() -> None:
    for peer in PEERS:
        if peer.key != "triton":
            lines = peer.requirements.read_text().splitlines()
            assert lines, peer.name
            assert all("==" in line or line == "-e .[cpu]" for line in lines), peer.name


def test_bodies_hold_the_rows_in_the_form_of_each_server() -> None:
    rows = np.arange(4, dtype=np.float32).reshape(1, 4)
    base64 = "AAAAAAAAgD8AAABAAABAQA=="
    bodies = [form.body("x", "FP32", rows) for form in (TENSOR, LIT_LIST, LIT_BASE64, BENTO_LIST, V2_LIST, V2_BASE64)]
    assert bodies == [
        rows.tobytes(),
        b'{"x":[0.0,1.0,2.0,3.0]}',
        f'{{"bytes":"{base64}"}}'.encode(),
        b'{"x":[[0.0,1.0,2.0,3.0]]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0.0,1.0,2.0,3.0]}]}',
        (
            f'{{"inputs":[{{"name":"x","datatype":"BYTES","shape":[1,1],"data":["{base64}"],'
            '"parameters":{"content_type":"base64"}}]}'
        ).encode(),
    ]
