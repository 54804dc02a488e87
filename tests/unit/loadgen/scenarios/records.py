"""Records and configurations of scenarios from literal figures."""

from collections.abc import Sequence

import numpy as np

from sluice.loadgen.records.record import Record, Status, objective_ns
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000


def config(scenario: ScenarioName, **settings: object) -> RunConfig:
    """A run of a scenario without warm-up."""
    arguments: dict[str, object] = {"warmup_s": 0.0} | settings
    return RunConfig(target="", model="", scenario=scenario, **arguments)  # type: ignore[arg-type]


def record(
    due_ms: Sequence[float], latency_ms: Sequence[float], slo_ms: float | None = None, failed: Sequence[int] = ()
) -> Record:
    """Queries due at these times and answered after these latencies, except for the `failed` ones."""
    due_ns = (np.array(due_ms) * MS).astype(np.int64)
    made = Record.of(Schedule(due_ns, np.zeros(len(due_ns), np.int64)), objective_ns(slo_ms))
    made.done_ns[:] = due_ns + (np.array(latency_ms) * MS).astype(np.int64)
    made.status[:] = Status.OK
    made.status[list(failed)] = Status.ERROR
    return made
