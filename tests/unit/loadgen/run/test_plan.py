from pathlib import Path

import pytest

from sluice.loadgen.run.runner import plan_run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.unit.loadgen.simulated_server import write_simulation


def test_a_schedule_of_years_is_refused_with_its_length(tmp_path: Path) -> None:
    target = write_simulation(tmp_path)
    config = RunConfig(target=target, model="small", rate=0.0001, queries=1000, slo_ms=100.0)
    with pytest.raises(ConfigError, match=r"schedule: lasts \d+ s; expected at most 2678400 s"):
        plan_run(config)
