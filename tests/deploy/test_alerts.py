"""Alerts in trouble and without it, by `promtool test rules`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT
from tests.support.tools import require_tool

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
NAMES = [rule["alert"] for rule in RULES if "alert" in rule]
HERE = 'instance="host:8002",job="sluice"'
PIPELINE = f'{HERE},pipeline="cascade:1"'
PARTITION = f'{HERE},partition="cpu0"'
HOURS = 121
"""Two hours of samples, one a minute."""


def requests(**by_outcome: int) -> dict[str, str]:
    """Requests a minute by outcome."""
    return {
        f'sluice_requests_total{{{PIPELINE},outcome="{outcome}"}}': f"0+{a_minute}x{HOURS}"
        for outcome, a_minute in ({"completed": 0, "completed_late": 0} | by_outcome).items()
    }


OBJECTIVE = {f"sluice_pipeline_objective_percentile{{{PIPELINE}}}": f"99+0x{HOURS}"}
TROUBLE: dict[str, dict[str, str]] = {
    "SluiceObjectiveMissed": requests(completed=80, completed_late=15, evicted_deadline=5) | OBJECTIVE,
    "SluiceObjectiveAtRisk": requests(completed=970, completed_late=30) | OBJECTIVE,
    "SluiceRequestsRefused": requests(completed=90, rejected_deadline=10),
    "SluiceRequestsFailed": requests(completed=95, failed_backend=5),
    "SluiceHeadroomLow": {f"sluice_pipeline_headroom{{{PIPELINE}}}": f"1.1+0x{HOURS}"},
    "SluiceWaitTooLong": {
        f"sluice_pipeline_predicted_wait_seconds{{{PIPELINE}}}": f"0.2+0x{HOURS}",
        f"sluice_pipeline_objective_seconds{{{PIPELINE}}}": f"0.1+0x{HOURS}",
    },
    "SluiceDown": {f"up{{{HERE}}}": f"0+0x{HOURS}"},
    "SluiceNotReady": {f"sluice_ready{{{HERE}}}": f"0+0x{HOURS}"},
    "SluiceModelsUnavailable": {f'sluice_models{{{HERE},status="unavailable"}}': f"2+0x{HOURS}"},
    "SluicePartitionDown": {f"sluice_partition_ready{{{PARTITION}}}": f"0+0x{HOURS}"},
    "SluicePartitionQuarantined": {f"sluice_partition_quarantined{{{PARTITION}}}": f"1+0x{HOURS}"},
    "SluiceWorkersRestart": {f"sluice_worker_restarts_total{{{PARTITION}}}": f"0+1x{HOURS}"},
    "SluicePartitionNotEnforced": {f"sluice_partition_enforced{{{PARTITION}}}": f"0+0x{HOURS}"},
    "SluiceBatchesFail": {
        f'sluice_batch_failures_total{{{PARTITION},cause="backend",model="m:1"}}': f"0+1x{HOURS}",
    },
    "SluiceFrontEndsRestart": {f"sluice_front_end_losses_total{{{HERE}}}": f"0+1x{HOURS}"},
    "SluiceFrontDoorFull": {f'sluice_client_faults_total{{{HERE},reason="no_connections"}}': f"0+3x{HOURS}"},
    "SluiceFilesNearLimit": {
        f"process_open_fds{{{HERE}}}": f"950+0x{HOURS}",
        f"process_max_fds{{{HERE}}}": f"1000+0x{HOURS}",
        f'sluice_build_info{{{HERE},version="1"}}': f"1+0x{HOURS}",
    },
    "SluiceTritonUnreachable": {f'sluice_triton_breaker{{{HERE},partition="t",state="open"}}': f"1+0x{HOURS}"},
}
QUIET: dict[str, str] = {
    **requests(completed=995, completed_late=5, rejected_deadline=10, cancelled_client=500),
    **OBJECTIVE,
    f"sluice_pipeline_headroom{{{PIPELINE}}}": f"3+0x{HOURS}",
    f"sluice_pipeline_predicted_wait_seconds{{{PIPELINE}}}": f"0.01+0x{HOURS}",
    f"sluice_pipeline_objective_seconds{{{PIPELINE}}}": f"0.1+0x{HOURS}",
    f"up{{{HERE}}}": f"1+0x{HOURS}",
    f"sluice_ready{{{HERE}}}": f"1+0x{HOURS}",
    f'sluice_models{{{HERE},status="unavailable"}}': f"0+0x{HOURS}",
    f"sluice_partition_ready{{{PARTITION}}}": f"1+0x{HOURS}",
    f"sluice_partition_quarantined{{{PARTITION}}}": f"0+0x{HOURS}",
    f"sluice_worker_restarts_total{{{PARTITION}}}": f"4+0x{HOURS}",
    f"sluice_partition_enforced{{{PARTITION}}}": f"1+0x{HOURS}",
    f'sluice_batch_failures_total{{{PARTITION},cause="backend",model="m:1"}}': f"7+0x{HOURS}",
    f"sluice_front_end_losses_total{{{HERE}}}": f"1+0x{HOURS}",
    f'sluice_client_faults_total{{{HERE},reason="malformed"}}': f"0+3x{HOURS}",
    f"process_open_fds{{{HERE}}}": f"50+0x{HOURS}",
    f"process_max_fds{{{HERE}}}": f"1000+0x{HOURS}",
    f'sluice_build_info{{{HERE},version="1"}}': f"1+0x{HOURS}",
    f'sluice_triton_breaker{{{HERE},partition="t",state="open"}}': f"0+0x{HOURS}",
}


def case(series: dict[str, str], *firing: str) -> dict[str, Any]:
    """A test in promtool's form: which alerts fire after two hours."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "2h",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)],
            }
        ],
    }


def promtool(*arguments: str) -> str:
    """The output of promtool; AssertionError where it finds something wrong."""
    done = subprocess.run([require_tool("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_well_formed() -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", str(ALERTS))


def test_each_alert_fires_in_its_trouble_and_none_without(tmp_path: Path) -> None:
    assert TROUBLE.keys() == set(NAMES)
    cases = [
        case(
            series,
            name,
            # Objectives that are missed by far are at risk as well; failed requests are not in time either.
            *(("SluiceObjectiveAtRisk",) if name == "SluiceObjectiveMissed" else ()),
        )
        for name, series in TROUBLE.items()
    ]
    # Ten times as many as may be late would be more than all.
    often = {f"sluice_pipeline_objective_percentile{{{PIPELINE}}}": f"60+0x{HOURS}"}
    missed = case(requests(completed_late=100) | often, "SluiceObjectiveMissed", "SluiceObjectiveAtRisk")
    document = {
        "rule_files": [str(ALERTS)],
        "tests": [*cases, missed, case(requests(completed=70, completed_late=30) | often), case(QUIET)],
    }
    (tmp_path / "tests.yaml").write_text(json.dumps(document))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_severity_and_a_section_of_the_runbook(name: str) -> None:
    (rule,) = [rule for rule in RULES if rule.get("alert") == name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = [line.strip("# `") for line in (ROOT / page).read_text().splitlines() if line.startswith("#")]
    assert name in headings
    assert anchor == name.lower()
