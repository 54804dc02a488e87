"""Records of what is under way: requests, their entries in queues, and batches.

They are `msgspec.Struct`s compared by identity: one is made several times a request, and that is the quickest way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sluice.batcher.interface.events import RequestArrived
    from sluice.batcher.queues.fair_queue import Queue
    from sluice.batcher.state.model import PartitionState
    from sluice.batcher.state.pipeline import PipelineState, Work


class StageRun(msgspec.Struct, eq=False):
    """How one stage of one request went: the rows it ran for (`row_index`; None for all) and its verdicts for them."""

    row_index: tuple[int, ...] | None
    rows: int
    verdicts: tuple[tuple[float, ...], ...] = ()
    batch_key: str = ""


class Request(msgspec.Struct, eq=False):
    """A request that was admitted, as it came with `arrival`, and has no outcome yet.

    `committed` has a bit for every stage whose expected work is still counted in the groups' backlogs; `running`
    counts, once it is `settled`, the batches and combiners that still hold its tensors. `runs` has a record a stage
    once it is known for which rows it runs, `missing` how many stages each one still waits for; both are empty for a
    pipeline of one stage. `ran_on` is the partition that ran its last batch.
    """

    identity: int
    pipeline: PipelineState
    rows: int
    deadline_ns: int
    arrival: RequestArrived
    work: Work
    committed: int
    open_stages: int
    settled: bool = False
    running: int = 0
    entries: list[Entry] = []
    missing: list[int] = []
    runs: list[StageRun | None] = []
    ran_on: PartitionState | None = None

    def uncommit(self, stage: int) -> None:
        """The stage starts, or never will: its expected work is no longer ahead of anybody."""
        bit = 1 << stage
        if self.committed & bit:
            self.committed &= ~bit
            for group, row_ns in self.work.stages[stage]:
                group.backlog_ns -= row_ns * self.rows

    def settle_rows(self, stage: int, rows: int) -> None:
        """It is known for how many rows a stage runs: what it was expected to take makes way for what it takes."""
        bit = 1 << stage
        self.uncommit(stage)
        self.work = self.work.known(stage, rows / self.rows)
        self.committed |= bit
        for group, row_ns in self.work.stages[stage]:
            group.backlog_ns += row_ns * self.rows


class Entry(msgspec.Struct, eq=False):
    """The rows of one request that wait for, or run in, one stage.

    `flow` is the number of its pipeline, whose entries it waits with; `late` says that it waits behind those that can
    still be in time. `stage_deadline_ns` is the request's deadline less what the stages after this one take;
    `row_index` and `rows` as in `StageRun`. `batch` is the batch that it runs in, `retry_group` the one that it is to be
    retried with.
    """

    request: Request
    stage: int
    rows: int
    row_index: tuple[int, ...] | None
    queue: Queue
    stage_deadline_ns: int
    enqueued_ns: int
    sequence: int
    flow: int = 0
    queued: bool = True
    late: bool = False
    lost_once: bool = False
    batch: Batch | None = None
    retry_group: list[Entry] | None = None


class Batch(msgspec.Struct, eq=False):
    """A batch on a partition; `median_ns` is how long it is expected to take, `live` counts unsettled members.

    `kind` is that of the partition when the batch was given to it. `suspect` marks the one that was running when its
    worker was lost, and may have been the cause.
    """

    identity: int
    queue: Queue
    partition: PartitionState
    kind: str
    entries: list[Entry]
    rows: int
    median_ns: int
    dispatched_ns: int
    live: int
    suspect: bool = False
    revoking: bool = False
