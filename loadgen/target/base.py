"""What the load generator asks of a live system under test."""

from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.models.errors import ServingError
from sluice.models.tensors.spec import TensorSpec

Tensors = Mapping[str, npt.NDArray[np.generic]]


class TargetUnreachable(ServingError):
    """The target does not answer at all."""


class TargetModel(msgspec.Struct, frozen=True):
    """A model as the target describes it; shapes as on the wire, with -1 in front when it can be batched."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Sink(Protocol):
    """Where a target reports; called from the event loop's thread."""

    def sent(self, query: int) -> None:
        """The bytes of a query were handed to the operating system."""

    def done(self, query: int, status: Status, answer: object = None, reason: str = "") -> None:
        """A query ended; called exactly once for every query issued, unless the target is closed before."""


class Target(Protocol):
    """A live system under test, used as metadata, prepare, issue …, close, then decode."""

    async def metadata(self) -> TargetModel:
        """Describe the model; raises `TargetUnreachable`, or `ConfigError` when the target does not serve it."""

    async def prepare(self, samples: Mapping[int, Tensors], sink: Sink, keep_answers: bool) -> None:
        """Encode the requests of all samples and connect, so that nothing of this is left for `issue`."""

    def issue(self, query: int, sample: int) -> None:
        """Start a query; never blocks. A query for which this raises is settled by the caller."""

    async def close(self) -> None:
        """Give up what is outstanding and free connections; the sink is not called any more."""

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """One output of an answer that was kept; raises `ConfigError` when there is no such output."""
