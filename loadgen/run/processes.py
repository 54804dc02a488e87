"""`--procs`: one schedule driven by several client processes, each of which has every n-th query."""

import asyncio
import pickle
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from sluice.loadgen.records.interim import InterimTest, JoinedLooks, LookCounts
from sluice.loadgen.records.progress import QueryCounts, Watch, unwatched
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.run.child import TaskProcess
from sluice.loadgen.run.issuer import on_interrupt
from sluice.loadgen.run.live import Driven, no_predictions
from sluice.loadgen.run.plan import RunPlan
from sluice.loadgen.run.shard import DONE, LOOK, OVER, READY, Task
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_MS
from sluice.mps.partitions.cpu import available_cores

MAX_PROCESSES = 64
_LEAD_NS = 50 * NS_PER_MS
"""The time in which all processes hear of the start."""


def automatic_count() -> int:
    """The number of processes that leaves one of the available cores to the target; at least 1."""
    return min(MAX_PROCESSES, max(1, len(available_cores()) - 1))


async def drive_in_processes(
    config: RunConfig, plan: RunPlan, interim: InterimTest | None = None, watch: Watch = unwatched
) -> Driven:
    """Drive a plan with `config.procs` processes, and join what they have measured; counts are those of a second ago.

    `interim` is the test that may end the run early, decided by what all processes count at its looks.

    The queries of a process that is lost count as errors, and `Driven.lost` says so. Raises `ConfigError` and
    `TargetUnreachable` as `drive` does.
    """
    plan.pacing.part(0, config.procs)  # refuses what the processes would refuse
    looks = None if interim is None else JoinedLooks(interim, config.procs)
    over = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        shards: list[_Shard] = []
        try:
            for index in range(config.procs):
                own = _share(config, index)
                file = Path(folder, str(index))
                task = Task(config, own, index, config.procs, plan.schedule.digest, file)
                shards.append(_Shard(task, await TaskProcess.start("sluice.loadgen.run.shard", task), looks, over))
            await asyncio.gather(*(shard.get_ready() for shard in shards))
            watch(partial(_counts, shards))
            with on_interrupt(asyncio.get_running_loop(), partial(_interrupt, shards)):
                start_ns = time.monotonic_ns() + _LEAD_NS
                await asyncio.gather(*(shard.finish(start_ns) for shard in shards))
        finally:
            await asyncio.gather(*(shard.end() for shard in shards))
        return _joined(plan, shards, start_ns)


class _Shard:
    """One process; `over` is set when the `looks` of all have decided the run."""

    def __init__(self, task: Task, child: TaskProcess, looks: JoinedLooks | None, over: asyncio.Event) -> None:
        self._task = task
        self._child = child
        self._looks = looks
        self._over = over

    @property
    def lost(self) -> str:
        """A sentence about the loss of the process; empty as long as it is not lost."""
        how = self._child.lost
        return how and f"client process {self._task.index + 1} of {self._task.count} {how}"

    @property
    def counts(self) -> QueryCounts:
        """The numbers of its queries, as of its last line about them."""
        words = self._child.progress.split()
        if len(words) != 2 or not all(word.isdigit() for word in words):  # a library prints other lines
            return QueryCounts(0, 0)
        return QueryCounts(*map(int, words))

    async def get_ready(self) -> None:
        """Wait until the process is ready for the start."""
        await self._child.hear(READY)

    async def finish(self, start_ns: int) -> None:
        """Tell the process the start, and wait until it has driven its queries."""
        await self._child.tell(b"%d\n" % start_ns)
        ending = asyncio.get_running_loop().create_task(self._end_when_over())
        try:
            await self._child.hear(DONE, self._takes_look)
        finally:
            ending.cancel()

    async def _end_when_over(self) -> None:
        await self._over.wait()
        await self._child.tell(OVER)

    def _takes_look(self, line: bytes) -> bool:
        """Add the counts of a look, if the line tells them."""
        if self._looks is None or not line.startswith(LOOK):
            return False
        at_ns, *counts = map(int, line.removeprefix(LOOK).split())
        if self._looks.add(self._task.index, at_ns, LookCounts(*counts)):
            self._over.set()
        return True

    def interrupt(self) -> None:
        """Pass an interrupt on."""
        self._child.interrupt()

    async def end(self) -> None:
        """Let the process exit, or end it."""
        await self._child.end(at_once=not self._task.file.exists())

    def driven(self, plan: RunPlan) -> Driven:
        """The result of the process; if it was lost, its queries are errors, or left out in a closed loop."""
        if not self.lost:
            with self._task.file.open("rb") as file:
                driven: Driven = pickle.load(file)
            return driven
        part = plan.schedule.part(self._task.index, self._task.count)
        record = Record.of(part, plan.table.slo_ns(part.sample))
        if plan.pacing.outstanding is not None:
            record = record.head(0)  # what it would have sent depended on the answers
        record.status[:] = Status.ERROR
        record.done_ns[:] = record.due_ns
        record.count_reason(self.lost, len(record))
        predictions = no_predictions(len(record), plan) if plan.table.is_labelled else None
        return Driven(
            record,
            interrupted=False,
            start_ns=0,
            cpu_ns=0,
            cpu_share=None,
            baseline_lateness_ms=0.0,
            predictions=predictions,
        )


def _counts(shards: Iterable[_Shard]) -> QueryCounts:
    counts = [shard.counts for shard in shards]
    return QueryCounts(sum(each.issued for each in counts), sum(each.ended for each in counts))


def _interrupt(shards: Iterable[_Shard]) -> None:
    for shard in shards:
        shard.interrupt()


def _share(config: RunConfig, index: int) -> RunConfig:
    """The configuration of one process, with its share of what all of them have together."""
    if config.procs > min(config.connections, config.max_outstanding):
        raise ConfigError(
            f"--procs {config.procs}: each process needs a connection; expected at least as many --connections and "
            f"--max-outstanding, got {config.connections} and {config.max_outstanding}"
        )

    def share(total: int) -> int:
        return len(range(index, total, config.procs))

    return msgspec.structs.replace(
        config, connections=share(config.connections), max_outstanding=share(config.max_outstanding)
    )


def _joined(plan: RunPlan, shards: Sequence[_Shard], start_ns: int) -> Driven:
    parts = [shard.driven(plan) for shard in shards]
    records = [part.record for part in parts]
    group = plan.schedule.group
    numbers = np.concatenate(
        [
            (rows // group * len(parts) + index) * group + rows % group
            for index, rows in enumerate(np.arange(len(record)) for record in records)
        ]
    )
    # By number, as all queries were due; in a closed loop, which has no such times, as they were issued.
    order = np.lexsort((numbers, np.concatenate([record.due_ns for record in records])))
    return Driven(
        record=Record.joined(records, order),
        interrupted=any(part.interrupted for part in parts),
        start_ns=start_ns,
        cpu_ns=sum(part.cpu_ns for part in parts),
        cpu_share=max((part.cpu_share for part in parts if part.cpu_share is not None), default=None),
        baseline_lateness_ms=max(part.baseline_lateness_ms for part in parts),
        predictions=(
            None
            if not plan.table.is_labelled
            else np.concatenate([part.predictions for part in parts if part.predictions is not None])[order]
        ),
        lost=tuple(shard.lost for shard in shards if shard.lost),
    )
