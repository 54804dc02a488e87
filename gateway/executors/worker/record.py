"""What the executor over worker processes knows of one of them."""

from collections.abc import Callable, Mapping

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.gateway.executors.hang_detector import BatchWatch
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.supervisor.process import WorkerProcess


class WorkerRecord:
    """A worker that is, or was, up: what it runs, in order of dispatch, and which of its output slots are in use.

    `tables` are of all models that it has held, `loading` those that are on their way in, in order. One that is
    `retired` gets nothing any more, and what that holds is to be called when it has answered all. `overdue` is told of
    a batch that does not end, as by `BatchWatch`.
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
        self.tables = dict(tables)
        self.loading: dict[str, None] = {}
        self.watch = BatchWatch(
            self.batches, self.tables, self.loading, batch_timeout_s, process.deliver_pending, overdue
        )
        self.slots_in_use = 0
        self.freed: list[int] = []
        self.retired: Callable[[], None] | None = None
        self.lost = False

    def hold(self, slot: int, drop_region: Callable[[int], None]) -> Callable[[], None]:
        """Keep an output slot until the result is called: with the next batch the worker is told that it is free.

        With the last slot of a lost worker the region goes that they are in.
        """
        self.slots_in_use += 1

        def free() -> None:
            self.slots_in_use -= 1
            if not self.lost:
                self.freed.append(slot)
            elif not self.slots_in_use:
                drop_region(self.region)

        return free
