"""The plan of a run: its samples, its schedule, how that is paced, and the requests that it names."""

from dataclasses import dataclass

import numpy as np

from sluice.loadgen.records.bodies import read_bodies
from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.record import objective_ns
from sluice.loadgen.records.samples import Samples, SampleSource, TargetModel, load_samples
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.table import scenario_of
from sluice.loadgen.simulation.target import SIMULATED
from sluice.loadgen.target.base import Request
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


@dataclass(frozen=True)
class Plan:
    """A run as it was fixed before its start. `requests` has the requests by the numbers that the schedule has."""

    samples: Samples
    schedule: Schedule
    pacing: Pacing
    requests: dict[int, Request]


def make_plan(config: RunConfig, metadata: TargetModel) -> Plan:
    """Fix a run; the same configuration and metadata give the same plan. Raises `ConfigError` as its parts do."""
    samples = _samples(config, metadata)
    scenario = scenario_of(config)
    schedule = scenario.schedule(config, len(samples))
    pacing = scenario.pacing(config, schedule)
    last_s = int(schedule.due_ns[-1]) / NS_PER_S
    if last_s < config.warmup_s and not pacing.from_issue:
        raise nothing_measured(f"the time of the last query ({last_s:g} s)", config.warmup_s)
    used = np.unique(schedule.sample).tolist()
    requests = {sample: Request(config.model, samples.tensors(sample), config.slo_ms) for sample in used}
    return Plan(samples, schedule, pacing, requests)


def interim_test(config: RunConfig, schedule: Schedule) -> InterimTest | None:
    """The test that may end the run early, where the configuration asks for it."""
    if config.decide_from_s is None:
        return None
    return InterimTest(
        schedule.due_ns,
        objective_ns(config.slo_ms),
        percentile=config.percentile,
        warmup_s=config.warmup_s,
        decide_from_s=config.decide_from_s,
    )


def _samples(config: RunConfig, metadata: TargetModel) -> Samples:
    if bool(config.path) != bool(config.bodies):
        raise ConfigError(f"--path and --bodies: expected both or none, got {config.path!r} and {config.bodies!r}")
    if not config.path:
        return load_samples(config.samples, metadata, config.rows, config.seed)
    if config.samples != SampleSource() or config.rows != 1 or config.target.startswith(SIMULATED):
        raise ConfigError("--bodies: a body is a whole sample; expected no --samples, no --rows and no sim: target")
    return read_bodies(config.bodies)


def nothing_measured(limit: str, warmup_s: float) -> ConfigError:
    """The error of a run whose warm-up is as long as itself."""
    return ConfigError(f"--warmup: leaves no query to measure; expected less than {limit}, got {warmup_s:g} s")
