"""The table of scenarios."""

from collections.abc import Mapping

from sluice.loadgen.scenarios.base import Scenario
from sluice.loadgen.scenarios.concurrency import Concurrency
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.scenarios.jobs import Jobs
from sluice.loadgen.scenarios.multi_stream import MultiStream
from sluice.loadgen.scenarios.offline import Offline
from sluice.loadgen.scenarios.server import ServerScenario
from sluice.loadgen.scenarios.single_stream import SingleStream
from sluice.models.errors import ConfigError

SCENARIOS: Mapping[ScenarioName, Scenario] = {
    ScenarioName.SERVER: ServerScenario(),
    ScenarioName.OFFLINE: Offline(),
    ScenarioName.SINGLE_STREAM: SingleStream(),
    ScenarioName.MULTI_STREAM: MultiStream(),
    ScenarioName.CONCURRENCY: Concurrency(),
    ScenarioName.JOBS: Jobs(),
}
"""A new scenario is a file of this folder, a name and a line here."""


def scenario_of(config: RunConfig) -> Scenario:
    """The scenario of a run; raises `ConfigError` for an option that it does not take, or a number below 1."""
    scenario = SCENARIOS[config.scenario]
    given = {
        "rate": config.rate or None,
        "concurrency": config.concurrency,
        "samples_per_query": config.samples_per_query,
    }
    for option, number in given.items():
        if number is None:
            continue
        name = f"--{option.replace('_', '-')}"
        if option not in scenario.takes:
            takers = ", ".join(each for each, other in SCENARIOS.items() if option in other.takes)
            raise ConfigError(f"{name}: not an option of --scenario {config.scenario}; it belongs to {takers}")
        if option != "rate" and number < 1:
            raise ConfigError(f"{name}: expected at least 1, got {number:g}")
    return scenario
