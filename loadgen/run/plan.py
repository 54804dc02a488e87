"""The plan of a run: its samples, its schedule and the requests that the schedule names."""

from dataclasses import dataclass

import numpy as np

from sluice.loadgen.records.samples import Samples, TargetModel, load_samples
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.target.base import Request
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


@dataclass(frozen=True)
class Plan:
    """A run as it was fixed before its start. `requests` has the requests by the numbers that the schedule has."""

    samples: Samples
    schedule: Schedule
    requests: dict[int, Request]


def make_plan(config: RunConfig, metadata: TargetModel) -> Plan:
    """Fix a run; the same configuration and metadata give the same plan. Raises `ConfigError` as its parts do."""
    samples = load_samples(config.samples, metadata, config.rows, config.seed)
    schedule = SCENARIOS[config.scenario].schedule(config, len(samples))
    last_s = int(schedule.due_ns[-1]) / NS_PER_S
    if last_s < config.warmup_s:
        raise nothing_measured(f"the time of the last query ({last_s:g} s)", config.warmup_s)
    used = np.unique(schedule.sample).tolist()
    requests = {sample: Request(config.model, samples.tensors(sample), config.slo_ms) for sample in used}
    return Plan(samples, schedule, requests)


def nothing_measured(limit: str, warmup_s: float) -> ConfigError:
    """The error of a run whose warm-up is as long as itself."""
    return ConfigError(f"--warmup: leaves no query to measure; expected less than {limit}, got {warmup_s:g} s")
