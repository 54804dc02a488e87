"""A partition's slot, which one worker after the other holds."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, ModelFile, StartWorker, ToWorker
from sluice.mps.isolation.back_off import BackOff
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.worker_spec import WorkerSpec


class WorkerSlot:
    """One partition over all the workers that come and go on it; one that takes `limit_s` to load is ended, by `end`.

    `models` are what the next worker is to hold: what this one holds now, but for what it was told to give up. `tables`
    are of the models that it holds, `shortfalls` why it does not have the partition that it should.
    """

    def __init__(self, spec: WorkerSpec, limit_s: float, end: Callable[[str, WorkerProcess, str], None]) -> None:
        self.spec = spec
        self.name = spec.partition.name
        self.kind = spec.partition.profile_kind
        self.models = {file.key: file for file in spec.models if spec.initial is None or file.key in spec.initial}
        self.tables: dict[str, LatencyTable] = {}
        self.violations: list[str] = []
        self.process: WorkerProcess | None = None
        self.output_region = 0
        self.ready = False
        self.back_off = BackOff()
        self.unclaimed_overflow: int | None = None
        self._limit_s = limit_s
        self._end = end
        self._changes: deque[AddModel | DropModel] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def for_replacement(self, spec: WorkerSpec) -> "WorkerSlot":
        """The slot of a worker that is to take the place of this one's."""
        return WorkerSlot(spec, self._limit_s, self._end)

    @property
    def has_pending_changes(self) -> bool:
        """Whether the worker is to load or to unload something."""
        return bool(self._changes)

    def call_later(self, delay_s: float, then: Callable[[], None]) -> None:
        """Call `then` later, in place of what waited before: the restart, or the end of what takes too long."""
        self.cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)

    def cancel_timer(self) -> None:
        """Call nothing later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send(self, message: ToWorker, fds: Sequence[int] = ()) -> None:
        """Send to the worker, if one is ready: while it starts it reads nothing."""
        if self.ready and self.process:
            self.process.send(message, fds)

    def process_started(self, process: WorkerProcess) -> None:
        """Give a new worker its first message; it is to be ready in time."""
        self.process = process
        self._limit(f"not ready within {self._limit_s:g} s")
        models = tuple(self.models.values())
        process.send(StartWorker(self.spec.partition, self.output_region, self.spec.output_bytes, models))

    def end(self, reason: str) -> None:
        """Have the worker ended, if there is one, which may be in the middle of something; returns at once."""
        if self.process is not None:
            self._end(self.name, self.process, reason)

    def process_lost(self) -> None:
        """Note that the worker is gone, and its changes with it."""
        self.process = None
        self.ready = False
        self.tables.clear()
        self._changes.clear()
        self.cancel_timer()

    def remember_model(self, file: ModelFile, table: LatencyTable | None) -> None:
        """Note that the next worker is to hold a model, too; what this one measured, that one need not."""
        self.models[file.key] = msgspec.structs.replace(file, table=table or file.table)

    def request_change(self, change: AddModel | DropModel) -> None:
        """Order a change, if a worker is ready to take it."""
        if not self.ready:
            return
        if isinstance(change, DropModel):
            self.models.pop(change.key, None)
        self.send(change)
        self._changes.append(change)
        if len(self._changes) == 1:
            self._limit_change()

    def model_loaded(self, model: LoadResult) -> None:
        """Note how the first change ended: the model is held, or did not load."""
        change = self._changes.popleft()
        assert isinstance(change, AddModel), "changes are answered in order"
        if model.table is not None:
            self.tables[model.key] = model.table
            self.remember_model(change.file, model.table)
        self._limit_change()

    def model_unloaded(self, key: str) -> None:
        """Note that the first change ended: the model is not held any more."""
        self._changes.popleft()
        self.tables.pop(key, None)
        self.models.pop(key, None)  # Once more: it may still have been loading when that was ordered.
        self._limit_change()

    def _limit_change(self) -> None:
        """Bound the time of the change that is under way now."""
        self.cancel_timer()
        if self._changes:
            what = "load" if isinstance(self._changes[0], AddModel) else "unload"
            self._limit(f"it did not {what} a model within {self._limit_s:g} s")

    def _limit(self, reason: str) -> None:
        """Have the worker ended for a reason, unless something else is waited for by then, or nothing any more."""
        self.call_later(self._limit_s, lambda: self._expired(reason))

    def _expired(self, reason: str) -> None:
        timer = self._timer
        if self.process is not None:
            self.process.deliver_pending()  # what is missing may be there, since loops look at timers before they read
        if self._timer is timer:
            self.end(reason)
