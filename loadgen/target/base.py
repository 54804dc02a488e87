"""The interface of a live system under test."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel, Tensors
from sluice.models.errors import ServingError

MAX_OUTSTANDING = 65_536
"""Default bound of the queries that have begun and not ended, waiting ones included."""
EXPLAIN_EVERY = 100
"""The number of queries of which, by default, one asks the server for its times by stage."""
EXPLAIN_HEADER = "x-sluice-explain"


class TargetUnreachable(ServingError):
    """The target does not answer at all."""


class TargetRequest(NamedTuple):
    """A request that queries send: tensors for a model or pipeline, and its options.

    `slo_ms` is the objective that is sent to the server, and `priority` the level of the request (0: the usual one).
    Its models have an accuracy of `min_accuracy` at least (0: any), it costs at most `max_cost` (None: any), and it
    begins `start_after_ms` after it came at the earliest.
    """

    model: str
    tensors: Tensors
    slo_ms: float | None = None
    priority: int = 0
    min_accuracy: float = 0.0
    max_cost: float | None = None
    start_after_ms: float = 0.0

    def parameters(self) -> dict[str, float | int]:
        """The parameters of the request, by their names in the protocol, without those that have no effect."""
        found: dict[str, float | int] = {}
        if self.slo_ms is not None:
            found["slo_ms"] = float(self.slo_ms)
        if self.priority:
            found["priority"] = self.priority
        if self.min_accuracy:
            found["min_accuracy"] = float(self.min_accuracy)
        if self.max_cost is not None:
            found["max_cost"] = float(self.max_cost)
        if self.start_after_ms:
            found["start_after_ms"] = float(self.start_after_ms)
        return found


class QueryListener(Protocol):
    """Takes a target's reports on its queries; called from the event loop's thread."""

    def queued(self, query: int) -> None:
        """Take note that a query is ready to be sent, but waits for a free connection."""

    def sent(self, query: int) -> None:
        """Take note that the bytes of a query were handed to the operating system."""

    def done(self, query: int, status: Status, answer: object = None, reason: str = "", stages: str = "") -> None:
        """Take note that a query ended: exactly once for every query issued, unless the target is closed before.

        `stages` has the server's times by stage, as the header `x-sluice-stages` has them, where the query asked for
        them and the server knows them.
        """


class Target(Protocol):
    """A live system under test. Calls come in this order: metadata, prepare, issue and cancel …, close, decode."""

    async def metadata(self, model: str) -> TargetModel:
        """Read a model's metadata; raises `TargetUnreachable`, or `ConfigError` when the target does not serve it."""

    async def statistics(self) -> bytes | None:
        """The statistics of all models, as JSON of the V2 protocol; None when the target does not tell them."""

    async def prepare(self, requests: Mapping[int, TargetRequest], listener: QueryListener, keep_answers: bool) -> None:
        """Encode all requests and connect, so that `issue` only has to send."""

    def issue(self, query: int, request: int) -> None:
        """Start a query with the prepared request of that key, without blocking.

        When this raises, the caller settles the query.
        """

    def cancel(self, query: int) -> None:
        """Give up a query: the listener hears that it was cancelled at once. One that has ended is left alone."""

    async def close(self) -> None:
        """Abandon outstanding queries and close connections; the listener is not called any more."""

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer; raises `ConfigError` when there is no such output."""
