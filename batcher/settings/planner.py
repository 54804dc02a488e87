"""Settings of the planner as users write them: which one it is, when it plans again, and how long it may take."""

import msgspec

from sluice.batcher.interface.planner_config import PlannerConfig, Replan, ServedPlanner

MAX_LIMIT_MS = 60_000


class PlannerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The planner `name`; it draws from `seed` if it is random, and may take `time_limit_ms` for each pipeline."""

    name: ServedPlanner = ServedPlanner.EXACT
    replan: Replan = Replan.DISPATCH
    seed: int = 0
    time_limit_ms: float = 1000

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed: expected at least 0, got {self.seed}")
        if not 0 < self.time_limit_ms <= MAX_LIMIT_MS:
            raise ValueError(f"time_limit_ms: expected above 0, up to {MAX_LIMIT_MS}, got {self.time_limit_ms:g}")

    def config(self) -> PlannerConfig:
        """The settings as the scheduler takes them."""
        return PlannerConfig(self.name.value, self.replan, self.seed, self.time_limit_ms)


PlannerSetting = ServedPlanner | PlannerSettings
"""A planner as users write it: its name alone, or its settings."""


def planner_settings(setting: PlannerSetting) -> PlannerSettings:
    """The settings of a planner of which there may be the name only."""
    return PlannerSettings(setting) if isinstance(setting, ServedPlanner) else setting
