import json
from pathlib import Path

import numpy as np

from sluice.loadgen.cli.main import main
from sluice.loadgen.papers.pipelines import ESCALATED, ROWS, write_repository
from tests.support.gateway.server import gateway_server


def test_an_experiment_measures_a_server_of_its_own(tmp_path: Path) -> None:
    document = tmp_path / "found.json"
    assert main(["paper", "run", "pipelines", "--quick", "--json", str(document)]) in (0, 2)
    (experiment,) = json.loads(document.read_bytes())["experiments"]
    ensemble, cascade, gain = experiment["findings"]
    assert (ensemble["published"], cascade["published"]) == ("0.629", "0.709")
    assert min(float(each["ours"]) for each in (ensemble, cascade, gain)) > 0


def test_the_cascade_of_the_experiment_escalates_the_share_of_rows_that_it_counts_with(tmp_path: Path) -> None:
    rows = np.load(write_repository(tmp_path))["x"]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [ROWS, 64], "data": rows.ravel().tolist()}]}
    with gateway_server(tmp_path / "repository", tmp_path) as server:
        status, _, answer = server.request("POST", "/v2/models/cascade/infer", json.dumps(body).encode())
        assert status == 200, answer
        _, _, metrics = server.request("GET", "/metrics")
    escalated = next(
        float(line.split()[-1])
        for line in metrics.decode().splitlines()
        if line.startswith("sluice_stage_rows_total") and 'pipeline="cascade:1",stage="large"' in line
    )
    assert escalated == ROWS * ESCALATED
