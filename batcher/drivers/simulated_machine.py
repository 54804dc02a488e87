"""The machine of a simulation: the times of the gateway around the workers, and those of batches."""

from typing import Protocol

import msgspec

from sluice.batcher.interface.decisions import CombineOutputs, DispatchBatch
from sluice.batcher.interface.events import Confidences


class Host(msgspec.Struct, frozen=True):
    """The time that the machine around the workers takes, in nanoseconds; by default none.

    The gateway is one event loop. In each of its turns it reads what has come, `receive_ns` a request and `complete_ns`
    a batch that ended; it handles all that at one instant, which keeps it busy for `handle_ns` a request that came or
    has its outcome; it sends batches, `dispatch_ns` each and `dispatch_row_ns` a row; and it writes answers,
    `answers_ns` where there are any and `answer_ns` each. Events that come meanwhile wait for the next turn, and so do
    arrivals for which a turn has no time. The rest keeps no one busy: a request takes `send_ns` to come and its answer
    `deliver_ns` to be read, a batch begins `hand_off_ns` after it was sent and its end is known `return_ns` later. A
    worker takes `between_ns` from one batch to the next.
    """

    send_ns: int = 0
    receive_ns: int = 0
    handle_ns: int = 0
    dispatch_ns: int = 0
    dispatch_row_ns: int = 0
    hand_off_ns: int = 0
    between_ns: int = 0
    return_ns: int = 0
    complete_ns: int = 0
    answers_ns: int = 0
    answer_ns: int = 0
    deliver_ns: int = 0


class Service(Protocol):
    """The model of the machine: how long a batch takes, and the confidences of its answers."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        """Time that the partition takes for a batch."""
        ...

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        """The confidences of a batch, as in `BatchCompleted`."""
        ...

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        """The confidences of a combiner, as in `OutputsCombined`."""
        ...
