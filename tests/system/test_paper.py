import json
from pathlib import Path

from sluice.loadgen.cli.main import main


def test_an_experiment_measures_a_server_of_its_own(tmp_path: Path) -> None:
    document, page = tmp_path / "found.json", tmp_path / "page.md"
    assert main(["paper", "run", "pipelines", "--quick", "--json", str(document), "--out", str(page)]) in (0, 2)
    (experiment,) = json.loads(document.read_bytes())["experiments"]
    assert [each["published"] for each in experiment["findings"][:4]] == ["0.629", "0.709"] * 2
    assert min(float(each["ours"].split()[0]) for each in experiment["findings"][:6]) > 0
    assert [each["verdict"] for each in experiment["findings"][6:]] == ["met", "met"], "objects, played and live"
    table = page.read_text()
    assert "| ensemble | in JSON | 3.00 |" in table, "the client asks for three models"
    assert "| cascade | in binary | 2.33 |" in table, "a third of the images goes on to a third one"
