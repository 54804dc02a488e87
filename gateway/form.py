"""What requests say beside numbers: clients send the same JSON again and again, with other numbers behind it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.answer import Tensor
from gateway.dataplane import Terms
from gateway.signature import Signature

MAX_HEAD_BYTES = 4096
"""A form with more JSON is not kept for the next request."""


class Form:
    """What a checked request has said. One with the same JSON and length differs in its tensors' contents only.

    That goes for a form that is `repeatable`: all tensors came in wire form, none of them are BYTES, and all outputs go
    into the response as they are.
    """

    __slots__ = ("_head", "_layout", "_length", "flags", "repeatable", "signature", "terms")

    def __init__(
        self,
        body: bytes | bytearray,
        json_length: int | None,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        terms: Terms,
        flags: tuple[bool, ...],
    ) -> None:
        self.signature = signature
        self.terms = terms
        self.flags = flags
        self._length = len(body)
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
            and offset == len(body)
            and terms.deliveries is None
        )

    def fits(self, body: bytes | bytearray, json_length: int | None, signature: Signature) -> bool:
        """Whether a request to this revision of a pipeline has this form."""
        return (
            signature is self.signature
            and len(body) == self._length
            and json_length == len(self._head)
            and body.startswith(self._head)
        )

    def tensors(self, body: bytes | bytearray) -> dict[str, Tensor]:
        """The tensors of a request of this form: views on its body."""
        return {name: np.ndarray(shape, dtype, body, offset) for name, shape, dtype, offset in self._layout}
