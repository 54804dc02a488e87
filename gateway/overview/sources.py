"""The parts of a server that the overview reads."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.observability.meters import Meters
from sluice.gateway.observability.traces.trace import BatchTrace, RecentTraces
from sluice.gateway.partitions.inventory import Inventory
from sluice.mps.supervisor.quarantine import Quarantined


class Sources(NamedTuple):
    """The parts of a server, none of which the overview changes.

    `clock` is that of the scheduler and `time_of_day` the time since 1970, both in nanoseconds. `watch_batches` has
    each batch that has completed reported, or none. `headrooms` are by pipeline of the scheduler. `has_failed` is true
    once the scheduler has failed.
    """

    registry: ModelRegistry
    inventory: Inventory
    scheduler: Scheduler
    meters: Meters
    traces: RecentTraces
    in_flight: Callable[[], int]
    headrooms: Callable[[], Mapping[str, float]]
    has_failed: Callable[[], bool]
    quarantined: Callable[[], Mapping[str, Quarantined]]
    watch_batches: Callable[[Callable[[BatchTrace], None] | None], None]
    clock: Callable[[], int]
    time_of_day: Callable[[], int]
    front_ends: int = 0
