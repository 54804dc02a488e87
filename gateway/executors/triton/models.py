"""The models of one Triton server: brought up, measured, and revived when they died."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import median_low

from sluice.gateway.executors.triton.client import TritonClient
from sluice.gateway.executors.triton.errors import ModelLost
from sluice.gateway.executors.triton.memory import TritonMemory
from sluice.gateway.executors.triton.wire import blank_inputs, decode_batch, encode_for
from sluice.models.errors import BackendFailed, BadTensor
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.spec import ModelSpec
from sluice.models.units import NS_PER_MS

REPEATS = 5
BUDGET_NS = 250 * NS_PER_MS
"""Time of a batch size after which it is not measured again."""
TRIAL_TIMEOUT_S = 10.0
"""Time for a batch of zeros, which may be the first one ever."""


class TritonModels:
    """Keeps models running on a server.

    `specs` are all models that it may hold, by key, and `tables` are the latency tables of those that it has held. A
    model that is `broken` has died, and is loaded again before it is used.
    """

    def __init__(
        self,
        client: TritonClient,
        memory: TritonMemory | None,
        specs: Mapping[str, ModelSpec],
        clock: Callable[[], int],
    ) -> None:
        self.specs = specs
        self.tables: dict[str, LatencyTable] = {}
        self.broken: set[str] = set()
        self._client = client
        self._memory = memory
        self._clock = clock

    async def bring_up(self, key: str) -> None:
        """Load a model and run every batch size of its menu; the first time, that yields its latency table.

        Raises ServerLost, ModelLost, BackendFailed or PartitionError.
        """
        spec = self.specs[key]
        if key in self.broken:
            await self._reload(key)
        elif not await self._client.is_ready(spec):
            await self._client.load(spec)
        try:
            await self._warm(key)
        except ModelLost:
            await self._reload(key)
            await self._warm(key)

    async def unload(self, key: str) -> None:
        """Have the server unload a model; if it does not allow that, the model stays, unused."""
        with suppress(BackendFailed):
            await self._client.unload(self.specs[key])

    async def _reload(self, key: str) -> None:
        """Unload and load a model that died: Triton does not restart it otherwise."""
        await self._client.unload(self.specs[key])
        await self._client.load(self.specs[key])
        self.broken.discard(key)

    async def _warm(self, key: str) -> None:
        spec, known = self.specs[key], key in self.tables
        cells: list[tuple[int, int]] = []
        for rows in spec.menu:
            warming_ns = await self._run_ns(spec, rows)
            times: list[int] = []
            while not known and len(times) < REPEATS and sum(times) < BUDGET_NS:
                times.append(await self._run_ns(spec, rows))
            if len(times) == 1:  # it may have been delayed, and a cell far too high is never corrected
                times.append(warming_ns)
            if times:
                cells.append((rows, median_low(times)))
        if cells:
            self.tables[key] = LatencyTable(tuple(cells))

    async def _run_ns(self, spec: ModelSpec, rows: int) -> int:
        begun_ns = self._clock()
        sent = encode_for(self._memory, spec, rows, blank_inputs(spec, rows))
        try:
            answer = await self._client.infer(sent.message, TRIAL_TIMEOUT_S, sent.http)
            ended_ns = self._clock()
            decode_batch(spec, rows, answer, sent)
        except BadTensor as error:
            raise BackendFailed(f"{spec.name}: {error}") from error
        finally:
            if self._memory is not None and sent.slot is not None:
                self._memory.free(sent.slot)
        return max(1, ended_ns - begun_ns)
