"""Asks the planner whether another split of the cores would be better, at the observed rates and latencies."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.core_steps import Ask, Cores, StepChoice, steps
from sluice.batcher.planner.splits import Split, best_step
from sluice.batcher.scheduler.replanner import CHANCE, Replanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.deployment.known_sizes import Tables
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.balance import SAMPLES_IN_A_ROW, BalanceSettings
from sluice.mps.partitions.partition import CpuPartition

HEADROOM = 1.25
"""The factor by which a step that only saves money must exceed the rates, beside their random variation."""
JUDGING = 0.05
"""The largest part of the time that may be spent on planning here: if plans take long, there are fewer looks."""

_replace = msgspec.structs.replace
Rates = Mapping[str, float]
Best = Callable[[SchedulerSpec, Observed, Rates, Sequence[Split]], Awaitable[Ask | None]]


class Watched(NamedTuple):
    """The present traffic.

    `rows` are those that each pipeline was asked for since the beginning. `corrections` are how many times as long
    batches take as their profiles say, by model and kind.
    """

    spec: SchedulerSpec
    observed: Observed
    rows: Mapping[str, int]
    corrections: Mapping[tuple[str, str], float]


def watched(scheduler: Scheduler, now_ns: int, corrections: Mapping[tuple[str, str], float]) -> Watched:
    """The traffic that a scheduler with a planner observes now."""
    replanner = scheduler.served.replanner
    assert isinstance(replanner, Replanner), "a live scheduler plans"
    rows = {name: pipeline.arrived_rows for name, pipeline in scheduler.pipelines.items()}
    return Watched(scheduler.spec, replanner.observe(now_ns), rows, corrections)


async def best_step_beside(
    spec: SchedulerSpec, observed: Observed, later: Rates, candidates: Sequence[Split]
) -> Ask | None:
    """Like `best_step`, in a thread: each plan takes milliseconds, for which the loop must not stand still."""
    return await asyncio.to_thread(best_step, spec, observed, later, candidates)


class PlanSteps:
    """The steps that the plan asks for; `own` are the cores that partitions have by the configuration.

    `sizes` gives the latencies at sizes of up to a number of cores, and `configure` a partition as the scheduler is to
    know it. Rates are taken over the last looks together.
    """

    def __init__(
        self,
        settings: BalanceSettings,
        own: Mapping[str, Cores],
        watch: Callable[[], Watched],
        sizes: Callable[[Sequence[CpuPartition], int], Awaitable[Tables]],
        configure: Callable[[CpuPartition], PartitionConfig],
        best: Best = best_step_beside,
    ) -> None:
        self._own = dict(own)
        self._watch = watch
        self._sizes = sizes
        self._configure = configure
        self._best = best
        self._choice = StepChoice(settings)
        self._seen: dict[tuple[str, str], LatencyTable] = {}
        self._due_s = -math.inf
        self._rows: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES_IN_A_ROW + 1)

    def changed(self, now_s: float) -> None:
        """Note that some partition was changed."""
        self._choice.changed(now_s)

    async def known(self, partitions: Sequence[CpuPartition], spare: Cores) -> Tables:
        """The latencies at other sizes; empty where they are not known, so that a plan says nothing about them."""
        cores = {core for each in partitions for core in each.cores}
        return await self._sizes(partitions, len(cores) + len(spare))

    async def look(self, now_s: float, partitions: Sequence[CpuPartition], spare: Cores, known: Tables) -> Ask | None:
        """The change to make now; `spare` are the unassigned cores."""
        if now_s < self._due_s:
            return None
        now = self._watch()
        self._rows.append((now_s, now.rows))
        ask = None
        if len(self._rows) > 1 and {each.name for each in partitions} <= set(now.observed.up):
            rates, later = self._rates(now)
            tables = self._tables(now, known)
            observed = _replace(now.observed, rates=rates, tables=tables)
            splits = list(self._splits(now.spec, partitions, spare, known))
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            ask = await self._best(now.spec, observed, later, splits)
            self._due_s = now_s + (loop.time() - begun_s) / JUDGING
        return self._choice.look(now_s, ask)

    def _splits(
        self, spec: SchedulerSpec, partitions: Iterable[CpuPartition], spare: Cores, known: Tables
    ) -> Iterator[Split]:
        """The steps to sizes that are known."""
        ours, configs = {each.name: each for each in partitions}, {each.name: each for each in spec.partitions}
        for step in steps({name: each.cores for name, each in ours.items()}, self._own, spare):
            after = [_replace(ours[change.partition], cores=change.held) for change in step.changes]
            if all(each.profile_kind in known for each in after):
                yield Split(step, tuple(_configured(configs[each.name], self._configure(each)) for each in after))

    def _rates(self, now: Watched) -> tuple[dict[str, float], dict[str, float]]:
        """Rows a second, and the highest rates that are to be expected in the ordinary course of things."""
        (begin_s, before), (end_s, rows) = self._rows[0], self._rows[-1]
        elapsed_s = max(end_s - begin_s, 1e-9)
        objectives = {each.name for each in now.spec.pipelines if each.slo_ns}
        came = {name: count - before.get(name, 0) for name, count in rows.items()}
        rates = {name: count / elapsed_s for name, count in came.items()}
        # With an objective, a single request after a long time must meet it as well.
        sure = {name: max(count, int(name in objectives and rows[name] > 0)) for name, count in came.items()}
        return rates, {
            name: HEADROOM * rates[name] + CHANCE * math.sqrt(count) / elapsed_s for name, count in sure.items()
        }

    def _tables(self, now: Watched, known: Tables) -> dict[str, dict[str, LatencyTable]]:
        """The observed latencies; those at other sizes as last observed, else as stored, with the same correction."""
        self._seen = {key: table for key, table in self._seen.items() if key[0] in now.observed.tables}
        present = {each.kind for each in now.spec.partitions}
        tables: dict[str, dict[str, LatencyTable]] = {}
        for key, by_kind in now.observed.tables.items():
            self._seen |= {(key, kind): table for kind, table in by_kind.items() if kind in present}
            correction = median([now.corrections.get((key, kind), 1.0) for kind in by_kind.keys() & present] or [1.0])
            tables[key] = dict(by_kind)
            for kind, stored in known.items():
                if kind not in present and key in stored:
                    tables[key][kind] = self._seen.get((key, kind)) or _slower(stored[key], correction)
        return tables


def _configured(present: PartitionConfig, wanted: PartitionConfig) -> PartitionConfig:
    """A partition at its other size; the models that it holds and may hold stay."""
    return _replace(present, kind=wanted.kind, price=wanted.price, share=wanted.share)


def _slower(table: LatencyTable, times: float) -> LatencyTable:
    return LatencyTable(tuple((size, max(round(latency * times), 1)) for size, latency in table.cells))
