"""A server that goes by a planner of the literature: its journal has the plans, and leads to the same decisions."""

from pathlib import Path

import msgspec
import pytest

from sluice.batcher.drivers.journal import decode_spec, decode_step
from sluice.batcher.interface.events import PlanBuilt
from sluice.batcher.interface.plan_data import FixedOption, GroupSearch
from sluice.batcher.interface.planner_config import PlannerConfig, Replan
from sluice.gateway.cli.main import main
from sluice.gateway.observability.traces.explanation import Explanation
from sluice.loadgen.run import runner
from sluice.loadgen.scenarios.config import RunConfig
from tests.support.gateway.server import gateway_server, stop
from tests.support.models.onnx_models import save_mlp

CHAIN = """
stages:
  first: {model: small, inputs: {x: request.x}}
  second: {model: large, inputs: {x: first.y}}
outputs:
  y: second.y
slo_ms: 5000
"""
QUERIES = 60


@pytest.mark.parametrize(("name", "rule", "kind"), [("esg", GroupSearch, "search"), ("infless", FixedOption, "fixed")])
def test_a_server_goes_by_the_planner_of_its_settings_and_its_journal_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, rule: type, kind: str
) -> None:
    repository, journal = tmp_path / "models", tmp_path / "journal"
    save_mlp(repository / "small" / "1" / "model.onnx", [4, 4])
    save_mlp(repository / "large" / "1" / "model.onnx", [4, 3])
    (repository / "chain").mkdir()
    (repository / "chain" / "pipeline.yaml").write_text(CHAIN)
    settings = {"partitions": 1, "planner": {"name": name, "replan": "dispatch", "seed": 1, "time_limit_ms": 60_000}}
    with gateway_server(repository, tmp_path, settings, ["--journal", str(journal)]) as server:
        target = f"http://{server.http_url}"
        result = runner.run(
            RunConfig(target=target, model="chain", rate=50, queries=QUERIES, warmup_s=0.0, drain_timeout_s=60, seed=1)
        )
        metrics = server.request("GET", "/metrics")[2].decode()
        explained = msgspec.json.decode(
            server.request("GET", f"/v2/sluice/requests/sluice-{QUERIES}")[2], type=Explanation
        )
        assert stop(server.process) == 0
    # A batch that no option is free and in time for runs without a rule.
    assert {stage.rule for stage in explained.stages} <= {f"{name}: {kind}", f"{name}: fallback"}
    assert len(explained.stages) == 2
    assert result.metrics.ok == QUERIES
    assert 'sluice_plan_failures_total{reason="error"} 0.0' in metrics
    first, *steps = journal.read_bytes().splitlines()
    assert decode_spec(first).planner == PlannerConfig(name, Replan.DISPATCH, 1, 60_000)
    events = [decode_step(line).event for line in steps]
    plans = [event.plan for event in events if isinstance(event, PlanBuilt) and event.plan is not None]
    rules = [stage.rule for plan in plans for pipeline in plan.pipelines for stage in pipeline.stages]
    assert rules
    assert all(isinstance(each, rule) for each in rules)
    capsys.readouterr()
    assert main(["replay", str(journal)]) == 0
    assert f"the same decisions in {len(steps)} steps" in capsys.readouterr().out
