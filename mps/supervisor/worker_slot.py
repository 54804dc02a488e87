"""The worker slot of a partition, which one worker after the other fills."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, ModelFile, StartWorker, ToWorker
from sluice.mps.isolation.back_off import BackOff
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.worker_spec import WorkerSpec


class WorkerSlot:
    """One partition over all its successive workers.

    A worker that takes longer than `limit_s` to load is ended by `end`.

    `models` are the models of the next worker: the models of this one without the models that it was ordered to
    unload. `answered` tells whether this worker has answered a batch. `tables` are the latency tables of the loaded
    models; `violations` are the reasons why its partition is not enforced. `tried_models` is how many models a worker
    has tried to load before it is ready.
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
        self.tried_models = 0
        self.answered = False
        self.back_off = BackOff()
        self.unclaimed_overflow: int | None = None
        self._limit_s = limit_s
        self._end = end
        self._changes: deque[AddModel | DropModel] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def for_replacement(self, spec: WorkerSpec) -> "WorkerSlot":
        """A slot for a worker that is to replace this slot's worker."""
        return WorkerSlot(spec, self._limit_s, self._end)

    @property
    def has_pending_changes(self) -> bool:
        """Return whether ordered loads or unloads are still unanswered."""
        return bool(self._changes)

    def call_later(self, delay_s: float, then: Callable[[], None]) -> None:
        """Call `then` later, replacing an earlier call: a restart, or the end of a worker that takes too long."""
        self.cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)

    def cancel_timer(self) -> None:
        """Cancel the pending call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send(self, message: ToWorker, fds: Sequence[int] = ()) -> None:
        """Send to the worker if it is ready: it reads nothing while it starts."""
        if self.ready and self.process:
            self.process.send(message, fds)

    def process_started(self, process: WorkerProcess) -> None:
        """Send a new worker its first message, and limit the time until it is ready."""
        self.process = process
        self._limit(f"not ready within {self._limit_s:g} s")
        models = tuple(self.models.values())
        spec = self.spec
        process.send(StartWorker(spec.partition, self.output_region, spec.output_bytes, models, spec.loading))

    def end(self, reason: str) -> None:
        """End the worker, if there is one, whatever it is doing; returns at once."""
        if self.process is not None:
            self._end(self.name, self.process, reason)

    def process_lost(self) -> None:
        """Record that the worker has exited; its pending changes are void."""
        self.process = None
        self.ready = False
        self.answered = False
        self.tables.clear()
        self._changes.clear()
        self.cancel_timer()

    def remember_model(self, file: ModelFile, table: LatencyTable | None) -> None:
        """Let the next worker also hold a model, without timing it again."""
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
        """A pending load has finished: the model is loaded, or failed to load.

        Raises PartitionError if there is no such load.
        """
        loads = (each for each in self._changes if isinstance(each, AddModel) and each.file.key == model.key)
        change = next(loads, None)
        if change is None:
            raise PartitionError(f"model {model.key} is loaded, which was not ordered")
        was_first = change is self._changes[0]
        self._changes.remove(change)
        if model.table is not None:
            self.tables[model.key] = model.table
            self.remember_model(change.file, model.table)
        if was_first:
            self._limit_change()

    def model_unloaded(self, key: str) -> None:
        """The first pending change has finished: the model is unloaded; raises PartitionError as `model_loaded`."""
        if not self._changes or self._changes[0] != DropModel(key):
            raise PartitionError(f"model {key} is unloaded, which was not ordered")
        self._changes.popleft()
        self.tables.pop(key, None)
        self.models.pop(key, None)  # Again: the model may still have been loading when its unloading was ordered.
        self._limit_change()

    def _limit_change(self) -> None:
        """Limit the time of the change that is under way now."""
        self.cancel_timer()
        if self._changes:
            what = "load" if isinstance(self._changes[0], AddModel) else "unload"
            self._limit(f"it did not {what} a model within {self._limit_s:g} s")

    def _limit(self, reason: str) -> None:
        """End the worker for a reason after `limit_s`, unless another timer was set or this one cancelled by then."""
        self.call_later(self._limit_s, lambda: self._expired(reason))

    def _expired(self, reason: str) -> None:
        timer = self._timer
        if self.process is not None:
            self.process.deliver_pending()  # the answer may have arrived: an event loop fires timers before it reads
        if self._timer is timer:
            self.end(reason)
