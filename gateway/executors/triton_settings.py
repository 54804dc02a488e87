"""The settings of a Triton server that runs batches."""

import math

import msgspec

from gateway.executors.batch_watch import BATCH_TIMEOUT_S


class TritonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Triton server that is running: a partition by the name of `name`.

    `url` is the host and port of its gRPC service. `models` are the names of those that it is to hold (None: all that
    are ready when Sluice starts). `price` is what an hour of it costs (None: as a whole GPU). A batch, and any other
    call but loading, has `timeout_s`, and 20 times its measured latency if that is more.
    """

    name: str
    url: str
    models: tuple[str, ...] | None = None
    price: float | None = None
    timeout_s: float = BATCH_TIMEOUT_S

    def __post_init__(self) -> None:
        host, _, port = self.url.rpartition(":")
        if not self.name or not host or "/" in host or not port.isdecimal():
            raise ValueError(f"expected a name and a url such as 127.0.0.1:8001, got '{self.name}' and '{self.url}'")
        if self.models is not None and not self.models:
            raise ValueError(f"triton {self.name}: expected names of models; leave the key out for all that are ready")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ValueError(f"triton {self.name}: expected a finite price of at least 0, got {self.price:g}")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"triton {self.name}: expected a finite timeout_s above 0, got {self.timeout_s:g}")

    @property
    def profile_kind(self) -> str:
        """What latency tables are keyed by: each server has its own."""
        return f"triton/{self.name}"
