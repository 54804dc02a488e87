"""The interface of a live system under test."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel, Tensors
from sluice.models.errors import ServingError


class TargetUnreachable(ServingError):
    """The target does not answer at all."""


class QueryListener(Protocol):
    """Takes a target's reports on its queries; called from the event loop's thread."""

    def queued(self, query: int) -> None:
        """Take note that a query is ready to be sent, but waits for a free connection."""

    def sent(self, query: int) -> None:
        """Take note that the bytes of a query were handed to the operating system."""

    def done(self, query: int, status: Status, answer: object = None, reason: str = "") -> None:
        """Take note that a query ended: exactly once for every query issued, unless the target is closed before."""


class Target(Protocol):
    """A live system under test. Calls come in this order: metadata, prepare, issue …, close, decode."""

    async def metadata(self) -> TargetModel:
        """Read the model's metadata; raises `TargetUnreachable`, or `ConfigError` when the target does not serve it."""

    async def prepare(self, samples: Mapping[int, Tensors], listener: QueryListener, keep_answers: bool) -> None:
        """Encode the requests of all samples and connect, so that `issue` only has to send."""

    def issue(self, query: int, sample: int) -> None:
        """Start a query without blocking. When this raises, the caller settles the query."""

    async def close(self) -> None:
        """Abandon outstanding queries and close connections; the listener is not called any more."""

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer; raises `ConfigError` when there is no such output."""
