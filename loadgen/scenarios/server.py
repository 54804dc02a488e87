"""MLPerf's Server scenario: queries arrive on their own, whatever the target does with earlier ones."""

from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.schedule import Schedule, server_schedule


class Server:
    """An open loop with the arrivals of the configuration."""

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Samples drawn uniformly with replacement, or each once, in random order."""
        return server_schedule(
            config.rate,
            config.duration_s,
            config.queries,
            samples,
            each_once=config.each_once,
            seed=config.seed,
            arrivals=config.arrivals,
        )
