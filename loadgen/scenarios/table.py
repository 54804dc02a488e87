"""The table of scenarios."""

from collections.abc import Mapping

from sluice.loadgen.scenarios.base import Scenario
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.scenarios.server import Server

SCENARIOS: Mapping[ScenarioName, Scenario] = {ScenarioName.SERVER: Server()}
"""A new scenario is a file of this folder, a name and a line here."""
