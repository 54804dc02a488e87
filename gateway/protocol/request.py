"""Inference requests and responses, independent of the transport."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.shared_memory import SharedMemoryRef, SharedMemoryWindow
from sluice.models.tensors.arrays import Array, Buffer

Parameters: TypeAlias = Mapping[str, bool | int | float | str]


MAX_VERSION_DIGITS = 18


def is_version(text: str) -> bool:
    """True if a text can be a version: a decimal number of at most 18 digits."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_VERSION_DIGITS


class WireTensor(msgspec.Struct):
    """An input as the client sent it; `shape` and `datatype` are not checked yet.

    `data` is in wire form (a view on the body), or a flat array of that datatype, or, for BYTES, a flat list. An input
    in shared memory has a `SharedMemoryRef`, which is replaced by a `SharedMemoryWindow` once it has been looked up.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer | Array | list[str] | list[bytes] | SharedMemoryRef | SharedMemoryWindow


class InferRequest(msgspec.Struct):
    """A decoded request; empty `outputs` ask for all of them.

    `shared` says that inputs lie in shared memory. `deliveries` has the outputs that the response does not carry as
    they are: their place in shared memory, or the number of classes to report.
    """

    inputs: list[WireTensor]
    outputs: Sequence[str] = ()
    id: str = ""
    parameters: Parameters = {}
    shared: bool = False
    deliveries: Mapping[str, SharedMemoryRef | int] = {}


class SharedMemoryOutput(msgspec.Struct):
    """An output that has been written to shared memory."""

    place: SharedMemoryRef
    shape: tuple[int, ...]


class InferResponse(msgspec.Struct):
    """The tensors of an answer in the requested order; views that are valid until `release`."""

    id: str
    outputs: Sequence[tuple[str, Tensor | SharedMemoryOutput]]
    answer: Answer

    def release(self) -> None:
        """Free the memory of the tensors."""
        self.outputs = []
        self.answer.release()
