"""Encoded responses, and the JSON that responses to the same request share."""

from typing import Any

import numpy as np

from sluice.gateway.protocol.request import InferResponse


class EncodedBody:
    """A body of `length` bytes: JSON, followed by the binary tensors as buffers."""

    __slots__ = ("blobs", "head", "length")

    def __init__(self, head: bytes, blobs: list[Any], length: int) -> None:
        self.head = head
        self.blobs = blobs
        self.length = length


class KnownResponse:
    """The JSON of a response, which responses to the same request share if their outputs have the same shapes.

    All outputs are binary and `length` is that of the body.
    """

    __slots__ = ("_head", "_length", "_shapes")

    def __init__(self, head: bytes, shapes: tuple[tuple[int, ...], ...], length: int) -> None:
        self._head = head
        self._shapes = shapes
        self._length = length

    def encode(self, response: InferResponse) -> EncodedBody | None:
        """The body of a response; None if it has other JSON."""
        blobs: list[Any] = []
        for (_, values), shape in zip(response.outputs, self._shapes, strict=True):
            if not isinstance(values, np.ndarray) or values.shape != shape:
                return None
            blobs.append(values if values.flags.c_contiguous else values.copy())
        return EncodedBody(self._head, blobs, self._length)


def known_response(response: InferResponse, encoded: EncodedBody) -> KnownResponse | None:
    """The JSON of a response that was encoded, for the next one; None if it has outputs that are no binary numbers."""
    shapes = tuple([values.shape for _, values in response.outputs if isinstance(values, np.ndarray)])
    if len(encoded.blobs) == len(shapes) == len(response.outputs):
        return KnownResponse(encoded.head, shapes, encoded.length)
    return None
