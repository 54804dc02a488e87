"""Shared memory between Sluice and one Triton server on the same machine: a slot for the tensors of each batch."""

import contextlib
import itertools
import logging
import mmap
import os
import re
import socket
from collections.abc import Iterable, Mapping

from sluice.gateway.executors.triton.client import TritonClient
from sluice.gateway.observability.logs import log
from sluice.models.errors import BackendFailed
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec, element_count

logger = logging.getLogger(__name__)

SLOTS = 4
"""Two for the batches in flight, and as many whose outputs are still on their way to clients."""
MIN_SLOT_BYTES, MAX_SLOT_BYTES = 1 << 20, 32 << 20
"""Larger batches are sent in messages: the memory is never returned, and /dev/shm is small in containers."""
ALIGNMENT = 64

_DIRECTORY = "/dev/shm"
_numbers = itertools.count(1)


class MemorySlot:
    """A region that the server knows as `name`, whose memory is `view`; `messages` may cache requests for it."""

    def __init__(self, name: str, nbytes: int) -> None:
        """Make the memory; raises OSError when there is none, rather than when it is first written to."""
        self.name = name
        self.nbytes = nbytes
        self.messages: dict[tuple[str, int], tuple[bytes, Mapping[str, int], bytes]] = {}
        descriptor = os.open(f"{_DIRECTORY}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            # Unmapped when the last view of it is gone.
            self.view = memoryview(mmap.mmap(descriptor, nbytes))
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove its name: the memory is freed when no process maps it any more, in whatever order they end."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{_DIRECTORY}/{self.name}")


class TritonMemory:
    """The slots for one server; there are none before the server has accepted them.

    A slot is large enough for a batch of any of `specs`, as far as its size is known and `MAX_SLOT_BYTES` allows.
    Batches whose tensors lie in a slot may be sent over HTTP to the address `http`, unless that is "".
    """

    def __init__(self, client: TritonClient, partition: str, specs: Iterable[ModelSpec], http: str = "") -> None:
        self.http = http
        self._client = client
        self._partition = partition
        # The namespace of process ids as well: each container numbers its processes by itself.
        host = re.sub("[^A-Za-z0-9]", "_", socket.gethostname())[:64]
        self._host = f"sluice-{host}-{os.stat('/proc/self/ns/pid').st_ino}"
        self._slot_bytes = min(max((MIN_SLOT_BYTES, *map(_batch_bytes, specs))), MAX_SLOT_BYTES)
        self._registered: list[str] = []
        self._slots: dict[str, MemorySlot] = {}
        self._free: list[MemorySlot] = []
        self._refused = False

    async def register(self) -> None:
        """Create new slots, in place of those of a server that was lost; raises ServerLost.

        If a server refuses them, all tensors are sent in messages. That is logged, and the server is not asked again.
        """
        self.drop()
        if self._refused:
            return
        try:
            await self._unregister_abandoned()
            while len(self._slots) < SLOTS:
                await self._add()
        except (BackendFailed, OSError) as error:
            self._refused = True
            self.drop()
            reason = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
            log(logger, logging.INFO, "triton takes no shared memory", partition=self._partition, reason=reason)

    async def unregister(self) -> None:
        """Have the server forget all slots that are not in use, if it can be reached; raises ServerLost."""
        await self._unregister(self._registered)

    async def _unregister(self, names: Iterable[str]) -> None:
        for name in list(names):
            # A slot that an abandoned batch still uses stays until the next time.
            with contextlib.suppress(BackendFailed):
                await self._client.unregister_memory(name)
                if name in self._registered:
                    self._registered.remove(name)

    async def _unregister_abandoned(self) -> None:
        """Have the server forget slots from before it was lost, and those of gateways on this host that were killed."""
        names = await self._client.memory_names()
        self._registered = [name for name in self._registered if name in names]
        await self._unregister(name for name in names if name in self._registered or self._is_left_over(name))

    def _is_left_over(self, name: str) -> bool:
        match = re.fullmatch(rf"{self._host}-(\d+)-\d+", name)
        return match is not None and not os.path.exists(f"/proc/{match[1]}")

    def drop(self) -> None:
        """Stop using the slots: a server that was lost may still write to them."""
        self._slots.clear()
        self._free.clear()

    def take(self, nbytes: int) -> MemorySlot | None:
        """A free slot of at least this many bytes, if there is one."""
        return self._free.pop() if self._free and nbytes <= self._slot_bytes else None

    def free(self, slot: MemorySlot) -> None:
        """Return a slot that is not read or written any more."""
        if self._slots.get(slot.name) is slot:
            self._free.append(slot)

    async def _add(self) -> None:
        name = f"{self._host}-{os.getpid()}-{next(_numbers)}"
        slot = MemorySlot(name, self._slot_bytes)
        self._registered.append(name)  # also if there is no answer: the server may have registered it
        try:
            await self._client.register_memory(name, slot.nbytes)
        except BackendFailed:
            self._registered.remove(name)
            raise
        finally:
            slot.unlink()
        self._slots[name] = slot
        self._free.append(slot)


def known_bytes(spec: ModelSpec, tensor: TensorSpec, rows: int) -> int | None:
    """Bytes of a tensor of a batch, if they are known before the batch runs."""
    if tensor.datatype is DataType.BYTES or not tensor.fixed:
        return None
    return element_count(tensor.shape) * tensor.datatype.itemsize * (rows if spec.batchable else 1)


def aligned(nbytes: int) -> int:
    """The number of bytes, rounded up to where the next tensor may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _batch_bytes(spec: ModelSpec) -> int:
    tensors = [known_bytes(spec, tensor, spec.max_batch_size) for tensor in (*spec.inputs, *spec.outputs)]
    return sum(map(aligned, filter(None, tensors)))
