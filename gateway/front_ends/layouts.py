"""Layouts of answers: what the gateway's process sends once of answers with small outputs."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.front_ends.messages import OUTPUT_ALIGNMENT, TEMPLATES, AnswerLayout, OutputPlace
from sluice.gateway.front_ends.numbers import Numbered
from sluice.gateway.protocol.answer import Tensor

SMALL_BYTES = 1024
"""Outputs of at most this size travel in the answer, which costs less than to refer to them."""

_Key: TypeAlias = tuple[object, ...]


class SentLayout(Numbered):
    """A layout in the gateway's process."""

    __slots__ = ("_outcome", "_outputs")

    def __init__(self, outcome: Outcome, outputs: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._outcome = outcome
        self._outputs: list[OutputPlace] = []
        offset = 0
        for name, tensor in outputs.items():
            self._outputs.append(OutputPlace(name, tensor.shape, offset))
            offset += tensor.nbytes + -tensor.nbytes % OUTPUT_ALIGNMENT

    def message(self) -> AnswerLayout:
        """The layout as it is sent."""
        return AnswerLayout(self.number, self._outcome, tuple(self._outputs))


class SentLayouts:
    """The layouts of the last answers, at most TEMPLATES of them."""

    def __init__(self) -> None:
        self._known: dict[_Key, SentLayout] = {}

    def find(self, outcome: Outcome, outputs: Mapping[str, Tensor]) -> tuple[SentLayout, bytes] | None:
        """The layout of an answer, and the bytes of its outputs; None for answers without one.

        Those have outputs of BYTES, large ones, or none.
        """
        key: list[object] = [outcome]
        data: list[bytes] = []
        room = SMALL_BYTES
        for name, tensor in outputs.items():
            if not isinstance(tensor, np.ndarray) or (room := room - tensor.nbytes) < 0:
                return None
            key += (name, tensor.shape, tensor.itemsize)
            content = tensor.tobytes()
            data.append(content)
            if padding := -len(content) % OUTPUT_ALIGNMENT:
                data.append(bytes(padding))
        if not data:
            return None
        known = tuple(key)
        layout = self._known.get(known)
        if layout is None:
            if len(self._known) >= TEMPLATES:
                del self._known[next(iter(self._known))]
            layout = self._known[known] = SentLayout(outcome, outputs)
        return layout, data[0] if len(data) == 1 else b"".join(data)
