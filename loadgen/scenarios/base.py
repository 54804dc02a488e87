"""The interface of a scenario."""

from typing import Protocol

from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.schedule import Schedule


class Scenario(Protocol):
    """The shape of a run's queries over time."""

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """The queries of a run with samples 0 to `samples` - 1; raises `ConfigError` for a run without queries."""
