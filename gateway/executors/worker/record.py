"""The executor's record of one worker."""

import os
from collections.abc import Callable, Mapping

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.gateway.executors.hang_detector import HangDetector
from sluice.gateway.executors.worker.waiting import ModelProgress, WaitingBatch
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.supervisor.process import WorkerProcess


class WorkerRecord:
    """A worker that is, or was, up: its batches in order of dispatch, and the number of its output slots in use.

    `waiting` are batches that wait for other models, which are not among `batches`, and `progress` is theirs (see
    `WaitingBatch`). `tables` are of all models that it has held, and `loading` are those that are being loaded, in
    order. A worker with `on_drained` is retired: it gets nothing more, and `on_drained` is called when it has answered
    all batches. `overdue` is called for a batch that does not end (see `HangDetector`).
    """

    def __init__(
        self,
        process: WorkerProcess,
        region: int,
        tables: Mapping[str, LatencyTable],
        batch_timeout_s: float,
        overdue: Callable[[str], None],
    ) -> None:
        self.process = process
        self.region = region
        self.batches: dict[int, DispatchBatch] = {}
        self.claims: dict[int, int] = {}
        """The descriptors of the claims of those batches that were sent behind another one."""
        self.waiting: dict[int, WaitingBatch] = {}
        self.progress: dict[str, ModelProgress] = {}
        self.tables = dict(tables)
        self.loading: dict[str, None] = {}
        self.hang_detector = HangDetector(
            self.batches, self.tables, self.loading, batch_timeout_s, process.deliver_pending, overdue
        )
        self.untaken: dict[int, int] = {}
        """The responses of each batch of a decoupled model that are held here, once it has sent one."""
        self.slots_in_use = 0
        self.freed: list[int] = []
        self.on_drained: Callable[[], None] | None = None
        self.lost = False

    def drop_claim(self, batch: int) -> None:
        """Close the claim of a batch that ends, if it has one."""
        if (claim := self.claims.pop(batch, None)) is not None:
            os.close(claim)

    def keep_slot(self, slot: int, drop_region: Callable[[int], None]) -> Callable[[], None]:
        """Keep an output slot until the result is called; the worker hears with its next batch that the slot is free.

        The last slot of a lost worker releases the region that they are in.
        """
        self.slots_in_use += 1

        def free() -> None:
            self.slots_in_use -= 1
            if not self.lost:
                self.freed.append(slot)
            elif not self.slots_in_use:
                drop_region(self.region)

        return free
