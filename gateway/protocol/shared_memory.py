"""System shared memory: regions that clients register to pass tensors outside the body of a request."""

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.models.errors import (
    AlreadyExists,
    BadTensor,
    ForbiddenRequest,
    NotFoundError,
    RequestError,
    UnsupportedRequest,
)
from sluice.models.tensors.arrays import WireBytes

DIRECTORY = "/dev/shm"
MAX_REGIONS = 1024
"""Each region holds a file descriptor."""

_RESERVED_PREFIXES = ("sluice", "triton_")
_MAX_KEY = 255


class RegionStatus(msgspec.Struct, frozen=True):
    """A registered region: `byte_size` bytes of the shared memory object `key`, from `offset` on."""

    name: str
    key: str
    offset: int
    byte_size: int


class SharedMemoryRef(NamedTuple):
    """The place that a client names for a tensor: `byte_size` bytes of a region, from `offset` on."""

    region: str
    byte_size: int
    offset: int = 0


class SharedMemoryRegion:
    """An open region. It is closed when the last request that uses it has been answered, registered or not.

    Its memory is read and written as a file and not mapped. A client that truncates the object harms only itself, and a
    client that writes while its request runs cannot change data that was checked.
    """

    __slots__ = ("_descriptor", "status")

    def __init__(self, status: RegionStatus) -> None:
        self.status = status
        self._descriptor = _open(status)

    def read(self, offset: int, size: int) -> bytes:
        """A copy of bytes of the region. Raises BadTensor if the object has been truncated."""
        begin, parts = self.status.offset + offset, []
        while size:
            part = os.pread(self._descriptor, size, begin)
            if not part:
                raise BadTensor(f"shared memory region '{self.status.name}': its object has been truncated")
            parts.append(part)
            begin += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes into the region; raises BadTensor if the object was truncated and cannot grow."""
        begin = self.status.offset + offset
        while data:
            try:
                written = os.pwrite(self._descriptor, data, begin)
            except OSError as error:
                raise BadTensor(
                    f"shared memory region '{self.status.name}' cannot be written: {error.strerror}"
                ) from error
            begin += written
            data = data[written:]

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class SharedMemoryWindow(msgspec.Struct, frozen=True, eq=False):
    """The part of a region that holds a tensor; it keeps the region open."""

    region: SharedMemoryRegion
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """A copy of its contents; raises BadTensor."""
        return self.region.read(self.offset, self.byte_size)

    def write(self, name: str, tensor: Tensor) -> SharedMemoryRef:
        """Write the output `name`; returns its place. Raises BadTensor if the window is too small."""
        size = tensor.nbytes
        if size > self.byte_size:
            raise BadTensor(
                f"shared memory size specified with the request for output '{name}' ({self.byte_size} bytes) should be "
                f"at least {size} bytes to hold the results"
            )
        self.region.write(self.offset, _bytes(tensor))
        return SharedMemoryRef(self.region.status.name, size, self.offset)


class SharedMemory:
    """The regions that clients have registered; without `allowed` they may register none.

    `max_tensor_bytes` bounds one input. Only objects whose names begin with `prefix` can be registered; None: none can.
    """

    def __init__(self, allowed: bool, max_tensor_bytes: int, prefix: str | None = "") -> None:
        self.allowed = allowed
        self._prefix = prefix
        self._max_tensor_bytes = max_tensor_bytes
        self._regions: dict[str, SharedMemoryRegion] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the region `name`.

        Raises AlreadyExists, RequestError, ForbiddenRequest for a key without the prefix, or UnsupportedRequest if no
        key is allowed.
        """
        self._check_allowed()
        if self._prefix is None or not key.removeprefix("/").startswith(self._prefix):
            beginning = "" if self._prefix is None else f", which is '{self._prefix}'"
            raise ForbiddenRequest(
                f"shared memory key '{key:.80}' may not be registered: expected one that begins with the value of "
                f"--client-shm-prefix{beginning or ', without which a server on a network accepts none'}"
            )
        if not name:
            raise RequestError("a shared memory region must have a name")
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager: unregister it first")
        if len(self._regions) >= MAX_REGIONS:
            raise RequestError(f"the limit of {MAX_REGIONS} shared memory regions is reached; unregister one first")
        self._regions[name] = SharedMemoryRegion(RegionStatus(name, key, offset, byte_size))

    def unregister(self, name: str | None = None) -> None:
        """Remove a region, or all; an unknown name is no error. Requests that use the region continue."""
        self._check_allowed()
        if name is None:
            self._regions.clear()
        else:
            self._regions.pop(name, None)

    def status(self, name: str | None = None) -> list[RegionStatus]:
        """The region of that name, or all. Raises NotFoundError."""
        self._check_allowed()
        regions: Iterable[SharedMemoryRegion] = self._regions.values() if name is None else [self._find(name)]
        return [region.status for region in regions]

    def input_window(self, place: SharedMemoryRef) -> SharedMemoryWindow:
        """The window of an input: as `window`, but within the limit for one input."""
        window = self.window(place)
        if window.byte_size > self._max_tensor_bytes:
            raise BadTensor(
                f"an input of {window.byte_size} bytes in shared memory region '{place.region}' is over the limit of "
                f"{self._max_tensor_bytes} bytes"
            )
        return window

    def window(self, place: SharedMemoryRef) -> SharedMemoryWindow:
        """A part of a registered region.

        Raises NotFoundError, BadTensor, or UnsupportedRequest if it is not allowed.
        """
        self._check_allowed()
        name, byte_size, offset = place
        region = self._find(name)
        size = region.status.byte_size
        if not 0 <= offset <= size:
            raise BadTensor(f"Invalid offset for shared memory region: '{name}': expected 0 to {size}, got {offset}")
        if not 0 <= byte_size <= size - offset:
            raise BadTensor(
                f"Invalid offset + byte size for shared memory region: '{name}' has {size} bytes, "
                f"but {byte_size} from {offset} on were asked for"
            )
        return SharedMemoryWindow(region, offset, byte_size)

    def _find(self, name: str) -> SharedMemoryRegion:
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name:.80}'")
        return region

    def _check_allowed(self) -> None:
        if not self.allowed:
            raise UnsupportedRequest("shared memory is disabled: the server was started without --allow-client-shm")


def _open(status: RegionStatus) -> int:
    """A descriptor of the object of a region, which must be large enough. Raises RequestError."""
    key = status.key.removeprefix("/")
    if not key.isprintable() or "/" in key or key in ("", ".", "..") or len(key.encode()) > _MAX_KEY:
        raise RequestError(f"shared memory key '{status.key:.80}' must be the name of an object, like '/tensors'")
    if key.startswith(_RESERVED_PREFIXES):
        raise RequestError(
            f"cannot register shared memory region '{status.name}' with key '{status.key}': keys that begin with "
            f"{' or '.join(_RESERVED_PREFIXES)} are reserved"
        )
    if status.offset < 0 or status.byte_size <= 0:
        raise RequestError(
            f"shared memory region '{status.name}': expected an offset of at least 0 and a byte_size of at least 1, "
            f"got {status.offset} and {status.byte_size}"
        )
    try:
        # Without following links out of the directory, and without waiting for pipes.
        descriptor = os.open(f"{DIRECTORY}/{key}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RequestError(f"Unable to open shared memory region: '{status.key}': {error.strerror}") from error
    about = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(about.st_mode):
        problem = "it is not a shared memory object"
    elif status.offset + status.byte_size > about.st_size:
        problem = f"it has {about.st_size} bytes, but offset and byte_size take {status.offset + status.byte_size}"
    if problem:
        os.close(descriptor)
        raise RequestError(f"cannot register shared memory region '{status.name}' with key '{status.key}': {problem}")
    return descriptor


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor's contents in wire form; copied only if they are not contiguous."""
    if isinstance(tensor, WireBytes):
        return memoryview(tensor.buffer)[int(tensor.row_offsets[0]) : int(tensor.row_offsets[-1])]
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
