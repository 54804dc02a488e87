"""Inference requests and responses as both protocols mean them, before and after the data plane."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.shared_memory import SharedMemoryRef, SharedMemoryWindow
from sluice.models.tensors.arrays import Array, Buffer

Parameters: TypeAlias = Mapping[str, bool | int | float | str]


MAX_VERSION_DIGITS = 18


def is_version(text: str) -> bool:
    """Whether a text can be a version: a decimal number of reasonable length."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_VERSION_DIGITS


class WireTensor(msgspec.Struct):
    """An input as the client sent it: `shape` and `datatype` are its claims, nothing is checked yet.

    `data` is the wire form (a view on the body), or a flat array of that datatype, or, for BYTES, a flat list; or it
    lies in shared memory: at a `SharedMemoryRef`, which is a `SharedMemoryWindow` once that has been looked up.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer | Array | list[str] | list[bytes] | SharedMemoryRef | SharedMemoryWindow


class InferRequest(msgspec.Struct):
    """A decoded request; no `outputs` means all of them.

    `shared` says that inputs lie in shared memory. `deliveries` are of the outputs that the response is not to have as
    they are: where in shared memory they are to lie, or how many of the most likely classes they are to tell.
    """

    inputs: list[WireTensor]
    outputs: Sequence[str] = ()
    id: str = ""
    parameters: Parameters = {}
    shared: bool = False
    deliveries: Mapping[str, SharedMemoryRef | int] = {}


class SharedMemoryOutput(msgspec.Struct):
    """An output that lies in shared memory by now."""

    place: SharedMemoryRef
    shape: tuple[int, ...]


class InferResponse(msgspec.Struct):
    """The tensors of an answer in the order they were asked for; views that hold until `release`."""

    id: str
    outputs: Sequence[tuple[str, Tensor | SharedMemoryOutput]]
    answer: Answer

    def release(self) -> None:
        """Give the memory of the tensors back."""
        self.outputs = []
        self.answer.release()
