"""Templates of requests: clients send the same JSON again and again with other numbers."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.json_data import decode_data
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor
from sluice.models.tensors.arrays import Buffer

MAX_HEAD_BYTES = 4096
"""Requests with more JSON are not remembered as templates."""

_KEY = b'"data"'


class _Template:
    """The parts of a checked request that all requests of the template share; `binary_flags` mark binary outputs.

    `response` is for the codec: what their responses share.
    """

    __slots__ = ("binary_flags", "options", "repeatable", "response", "signature")

    def __init__(self, signature: Signature, options: RequestOptions, binary_flags: tuple[bool, ...]) -> None:
        self.signature = signature
        self.options = options
        self.binary_flags = binary_flags
        self.repeatable = False
        self.response: Any = None


class RequestTemplate(_Template):
    """A checked request with binary tensors. A request with the same JSON and length differs only in tensor contents.

    That holds for a `repeatable` template: all tensors are binary, none of them are BYTES, and the response carries all
    outputs as they are. The binary data follows the JSON in `body`, or is in `blobs`.
    """

    __slots__ = ("_head", "_layout", "_length")

    def __init__(
        self,
        body: Buffer,
        json_length: int | None,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        binary_flags: tuple[bool, ...],
        blobs: memoryview | None = None,
    ) -> None:
        super().__init__(signature, options, binary_flags)
        self._length = len(body) if blobs is None else len(body) + len(blobs)
        self._head = b"" if json_length is None else bytes(body[:json_length])
        offset = len(self._head)
        self._layout: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
        for name, tensor in inputs.items():
            if isinstance(tensor, np.ndarray):
                self._layout.append((name, tensor.shape, tensor.dtype, offset))
                offset += tensor.nbytes
        self.repeatable = (
            0 < len(self._head) <= MAX_HEAD_BYTES
            and len(self._layout) == len(inputs)
            and offset == self._length
            and options.deliveries is None
        )

    def matches(
        self, body: Buffer, json_length: int | None, signature: Signature, blobs: memoryview | None = None
    ) -> bool:
        """True if a request to this revision of a pipeline has this template."""
        return (
            signature is self.signature
            and (len(body) if blobs is None else len(body) + len(blobs)) == self._length
            and json_length == len(self._head)
            and body[: len(self._head)] == self._head
        )

    def begins(self, first: bytes) -> bool:
        """True if a request with these first bytes may match."""
        return first.startswith(self._head)

    def tensors(self, body: Buffer, blobs: memoryview | None = None) -> dict[str, Tensor]:
        """The tensors of a request that matches: views on its body."""
        if blobs is not None:
            begin = len(self._head)
            return {name: np.ndarray(shape, dtype, blobs, at - begin) for name, shape, dtype, at in self._layout}
        return {name: np.ndarray(shape, dtype, body, offset) for name, shape, dtype, offset in self._layout}


class JsonTemplate(_Template):
    """A checked request that is all JSON. A request with the same text around its data has only other numbers.

    That holds for a `repeatable` template: it has one input of numbers and no id, and the response carries all outputs
    as they are.
    """

    __slots__ = ("_head", "_input", "_tail")

    def __init__(
        self,
        body: Buffer,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        binary_flags: tuple[bool, ...],
    ) -> None:
        super().__init__(signature, options, binary_flags)
        (name, tensor), *more = inputs.items()
        if more or options.id or options.deliveries is not None or not isinstance(tensor, np.ndarray):
            return
        self._head, self._tail = _around_data(bytes(body))
        if self._head:
            self.repeatable = True
            self._input = name, signature.input_datatypes[name], tensor.shape, tensor.size

    def matches(
        self, body: Buffer, json_length: int | None, signature: Signature, blobs: memoryview | None = None
    ) -> bool:
        """True if a request to this revision of a pipeline has this template, apart from its data."""
        return (
            signature is self.signature
            and json_length is None
            and body[: len(self._head)] == self._head
            and body[-len(self._tail) :] == self._tail
        )

    def tensors(self, body: Buffer, blobs: memoryview | None = None) -> dict[str, Tensor] | None:
        """The tensor of a request that matches; None if its data is not as expected."""
        name, datatype, shape, count = self._input
        try:
            values = decode_data(name, datatype, msgspec.Raw(body[len(self._head) : len(body) - len(self._tail)]))
        except (BadTensor, IndexError):  # or no data at all: decoding the whole body reports the error
            return None
        return {name: values.reshape(shape)} if isinstance(values, np.ndarray) and values.size == count else None


Template: TypeAlias = RequestTemplate | JsonTemplate


def _around_data(body: bytes) -> tuple[bytes, bytes]:
    """The text before and after the data of the only input in a checked request; b"" if the place is ambiguous."""
    begin = body.find(b"[", max(body.find(_KEY), 0))
    brace, quote = body.find(b"}", begin), body.find(b'"', begin)
    end = body.rfind(b"]", begin, brace if quote < 0 else min(brace, quote)) + 1
    if not 0 < begin < end or begin + len(body) - end > MAX_HEAD_BYTES:
        return b"", b""
    head, tail = body[:begin], body[end:]
    is_only = head.count(_KEY) + tail.count(_KEY) == 1
    return (head, tail) if is_only and b"\\" not in head and b"\\" not in tail else (b"", b"")
