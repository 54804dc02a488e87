"""One Triton server as a partition: a circuit breaker around it, and the batches that it runs."""

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from batcher.config import Verdict
from batcher.decisions import DispatchBatch
from batcher.events import (
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from gateway.answer import Tensor
from gateway.assembly import Assembly, Outputs
from gateway.executors.base import Post
from gateway.executors.batch_watch import LATENCY_FACTOR
from gateway.executors.triton_client import ModelLost, ServerLost, TritonClient
from gateway.executors.triton_models import TritonModels
from gateway.executors.triton_settings import TritonSettings
from gateway.executors.triton_wire import decode_batch, encode_batch
from models.arrays import WireBytes
from models.confidence import confidence
from models.errors import BackendFailed, BadTensor, PartitionError, ServingError
from models.pipeline import batch_key
from models.spec import ModelSpec
from models.units import NS_PER_S
from mps.back_off import BackOff

logger = logging.getLogger(__name__)

LAST_PROBE_S = 5.0
"""The longest that a server which is lost is left alone."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""How long a model that could not be loaded is left alone; twice as long each time."""


class Breaker(enum.StrEnum):
    """Whether a server is given batches: `closed` as long as all is well, `half_open` while it is tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Watcher(Protocol):
    """Is told how the servers are."""

    def triton_ready(self, partition: str, url: str, loaded: Sequence[str], failed: Mapping[str, str]) -> None:
        """A server takes batches; `failed` maps models that it does not run to the reasons."""
        ...

    def triton_lost(self, partition: str, url: str, reason: str) -> None:
        """A server takes no batches, until `triton_ready`; also told when it could not be reached the first time."""
        ...

    def model_loaded(self, partition: str, model: str) -> None:
        """A server that is up holds one more model."""
        ...

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        """A server that is up could not load a model."""
        ...

    def model_unloaded(self, partition: str, model: str) -> None:
        """A server that is up does not hold a model any more."""
        ...


class TritonPartition:
    """Runs batches on one server, each as one call, and keeps it and its models going as far as that can be done.

    `specs` are the models that it may hold, and begins with, by key; `verdicts` what is asked of each. A call that
    fails by more than its content opens the breaker: the partition is lost with its batches. It is ready again when
    the server is, and has run a batch of every size. What does not come up then is tried again beside the batches.
    """

    def __init__(
        self,
        settings: TritonSettings,
        specs: Mapping[str, ModelSpec],
        verdicts: Mapping[str, Sequence[Verdict]],
        assembly: Assembly,
        watcher: Watcher,
        clock: Callable[[], int],
    ) -> None:
        self.breaker = Breaker.OPEN
        self._settings = settings
        self._name = settings.name
        self._verdicts = verdicts
        self._assembly = assembly
        self._watcher = watcher
        self._clock = clock
        self._client = TritonClient(settings.url)
        self._models = TritonModels(self._client, specs, clock)
        self._held: set[str] = set()
        self._running: dict[int, tuple[DispatchBatch, asyncio.Task[None]]] = {}
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()
        self._free_ns = 0
        self._serving: asyncio.Task[None]
        self._post: Post

    def start(self, post: Post) -> None:
        """Connect, and report what the server holds once it is ready."""
        self._post = post
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def drain(self) -> None:
        """Give up what runs; the server stays."""
        tasks = [self._serving, *self._changes, *(task for _, task in self._running.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    # -- batches

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch; raises PartitionError when the breaker is open."""
        if self.breaker is not Breaker.CLOSED:
            raise PartitionError(f"the Triton server {self._name} is not in service")
        message = encode_batch(self._models.specs[batch.model], self._assembly.collect(batch))
        task = asyncio.get_running_loop().create_task(self._run(batch, message))
        self._running[batch.batch] = batch, task

    def revoke(self, batch: int) -> None:
        """Take a batch back that waits behind another one; too late is no error."""
        if batch in self._running and next(iter(self._running)) != batch:
            self._end(batch)
            self._post(BatchRevoked(batch))

    async def _run(self, batch: DispatchBatch, message: bytes) -> None:
        sent_ns = self._clock()
        limit_s = LATENCY_FACTOR * self._models.tables[batch.model].latency_ns(batch.rows) / NS_PER_S
        try:
            answer = await self._client.infer(message, max(self._settings.timeout_s, limit_s))
            self._complete(batch, sent_ns, answer)
        except ModelLost as error:
            self._models.broken.add(batch.model)
            self._open(f"{batch.model}: {error}")
        except ServerLost as error:
            self._open(str(error))
        except BadTensor as error:
            self._open(f"{batch.model}: {error}")
        except BackendFailed as error:
            self._fail(batch, FailureCause.BACKEND, str(error))
        except PartitionError as error:
            self._fail(batch, FailureCause.RESOURCES, str(error))
        except Exception as error:  # whatever it is, it ends this batch and nothing else
            logger.exception("batch %d of %s could not be completed", batch.batch, batch.model)
            self._fail(batch, FailureCause.BACKEND, str(error))

    def _complete(self, batch: DispatchBatch, sent_ns: int, answer: bytes) -> None:
        """Take an answer; raises BadTensor for one that makes no sense."""
        ended_ns = self._clock()
        spec = self._models.specs[batch.model]
        tensors = decode_batch(spec, batch.rows, answer)
        verdicts = tuple(_confidences(tensors, verdict) for verdict in self._verdicts.get(batch.model, ()))
        key = batch_key(
            (output.name, tensors[output.name].shape[int(spec.batchable) :])
            for output in spec.outputs
            if not output.fixed
        )
        # The server may have begun only when it was done with the one before.
        started_ns = max(sent_ns, self._free_ns)
        self._free_ns = ended_ns
        del self._running[batch.batch]
        self._assembly.complete(batch.batch, Outputs(tensors, {}, _nothing))
        self._post(BatchCompleted(batch.batch, started_ns, ended_ns, verdicts, key))

    def _fail(self, batch: DispatchBatch, cause: FailureCause, reason: str) -> None:
        self._end(batch.batch)
        self._post(BatchFailed(batch.batch, cause, f"{batch.model}: {reason}"))

    def _end(self, batch: int) -> None:
        """Forget a batch that will not complete, and its call."""
        _, task = self._running.pop(batch)
        if task is not asyncio.current_task():
            task.cancel()
        self._assembly.abandon(batch)

    # -- the server

    async def _serve(self) -> None:
        back_off = BackOff()
        while True:
            self.breaker = Breaker.HALF_OPEN
            try:
                failed = await self._bring_up()
            except ServerLost as error:
                self._open(str(error))
            else:
                self._close(failed)
                back_off.ready(time.monotonic())
                await self._lost.wait()
            await asyncio.sleep(min(back_off.lost(time.monotonic()), LAST_PROBE_S))

    async def _bring_up(self) -> dict[str, str]:
        """Get the models to run; returns the reasons why some do not. Raises ServerLost."""
        await self._client.check_server()
        failed: dict[str, str] = {}
        for key in self._models.specs:
            try:
                await self._models.bring_up(key)
            except ServerLost:
                raise
            except ServingError as error:
                failed[key] = str(error)
        return failed

    def _close(self, failed: Mapping[str, str]) -> None:
        """Close the breaker: the partition is in service."""
        self.breaker = Breaker.CLOSED
        self._lost.clear()
        self._free_ns = 0
        self._held = self._models.specs.keys() - failed.keys()
        tables = {key: self._models.tables[key] for key in self._models.specs if key in self._held}
        self._watcher.triton_ready(self._name, self._settings.url, list(tables), failed)
        self._post(PartitionReady(self._name, tables))
        for key in failed:
            self._change(self._revive(key))

    def _open(self, reason: str) -> None:
        """Open the breaker: the partition is lost with its batches. Told once, however often the server is tried."""
        self.breaker = Breaker.OPEN
        if self._lost.is_set():
            return
        self._lost.set()
        self._watcher.triton_lost(self._name, self._settings.url, reason)
        self._post(PartitionLost(self._name, reason))
        for change in self._changes:
            if change is not asyncio.current_task():
                change.cancel()
        for batch in list(self._running):
            self._end(batch)
            self._post(BatchFailed(batch, FailureCause.WORKER_LOST, reason))

    # -- models

    def load(self, key: str) -> None:
        """Have the server hold one more model; nothing follows when the server is lost first."""
        if self.breaker is Breaker.CLOSED:
            self._change(self._load(key))

    def unload(self, key: str) -> None:
        """Have the server give up a model after its batches; as `load`."""
        if self.breaker is Breaker.CLOSED:
            self._change(self._unload(key))

    def _change(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(change))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _carry_out(self, change: Coroutine[None, None, None]) -> None:
        """Make a change; nothing is said of a model when the server is lost with it."""
        try:
            await change
        except ServerLost as error:
            self._open(str(error))

    async def _load(self, key: str) -> None:
        if (reason := await self._bring_up_one(key)) is not None:
            self._watcher.model_load_failed(self._name, key, reason)
            self._post(ModelLoadFailed(self._name, key, reason))

    async def _revive(self, key: str) -> None:
        """Try a model that did not come up until it does."""
        delay_s = FIRST_RETRY_S
        while key not in self._held:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
            await self._bring_up_one(key)

    async def _bring_up_one(self, key: str) -> str | None:
        """Load a model, one at a time, and report it; returns the reason when it does not load."""
        async with self._changing:
            try:
                await self._models.bring_up(key)
            except ServerLost:
                raise
            except ServingError as error:
                return str(error)
        self._held.add(key)
        self._watcher.model_loaded(self._name, key)
        self._post(ModelLoaded(self._name, key, self._models.tables[key]))
        return None

    async def _unload(self, key: str) -> None:
        async with self._changing:
            if batches := [task for batch, task in self._running.values() if batch.model == key]:
                await asyncio.wait(batches)
            await self._models.unload(key)
        self._held.discard(key)
        self._watcher.model_unloaded(self._name, key)
        self._post(ModelUnloaded(self._name, key))


def _confidences(tensors: Mapping[str, Tensor], verdict: Verdict) -> tuple[float, ...]:
    tensor = tensors[verdict.output]
    assert not isinstance(tensor, WireBytes), "confidences are of numbers"
    return tuple(confidence(tensor, verdict.confidence).tolist())


def _nothing() -> None:
    """What outputs need to be freed that are in the answer's own memory."""
