"""The settings of a Triton server that runs batches."""

import math

import msgspec

BATCH_TIMEOUT_S: float = 10
"""Time that every batch has, on workers as on Triton servers, however short its latency is."""


class TritonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Triton server, which is a partition with the name `name`; it runs already or is started with `command`.

    `url` is the host and port of its gRPC service, or `unix:` and a path. `command` runs on `cores` (empty: all) with
    `environment` added, and must be ready within `start_timeout_s`. `models` are the models to use (None: all that are
    ready at the start). `price` is the cost per hour (None: that of a whole GPU). A batch, and any other call except
    loading, may take `timeout_s`, or 20 times its measured latency if that is more. `http_url` is the host and port of
    the HTTP service of a server on this machine, which is used for batches in shared memory.
    """

    name: str
    url: str
    models: tuple[str, ...] | None = None
    price: float | None = None
    timeout_s: float = BATCH_TIMEOUT_S
    command: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    environment: dict[str, str] = {}
    start_timeout_s: float = 120.0
    http_url: str = ""

    def __post_init__(self) -> None:
        if not self.name or not (self._is_unix or _is_address(self.url)):
            raise ValueError(f"expected a name and a url such as 127.0.0.1:8001, got '{self.name}' and '{self.url}'")
        if not self.command and (self.cores or self.environment):
            raise ValueError(f"triton {self.name}: cores and environment require a command")
        if self.http_url and not (_is_address(self.http_url) and self.local):
            raise ValueError(
                f"triton {self.name}: expected an http_url such as 127.0.0.1:8000, for a server on this machine, "
                f"got '{self.http_url}'"
            )
        if self.command and not all(self.command):
            raise ValueError(f"triton {self.name}: expected a command without empty arguments")
        if len(set(self.cores)) < len(self.cores) or min(self.cores, default=0) < 0:
            raise ValueError(f"triton {self.name}: expected cores of at least 0, each once, got {list(self.cores)}")
        if not 0 < self.start_timeout_s < math.inf:
            raise ValueError(
                f"triton {self.name}: expected a finite start_timeout_s above 0, got {self.start_timeout_s:g}"
            )
        if self.models is not None and not self.models:
            raise ValueError(f"triton {self.name}: expected names of models; leave the key out for all that are ready")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ValueError(f"triton {self.name}: expected a finite price of at least 0, got {self.price:g}")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"triton {self.name}: expected a finite timeout_s above 0, got {self.timeout_s:g}")

    @property
    def _is_unix(self) -> bool:
        return self.url.startswith("unix:") and len(self.url) > len("unix:")

    @property
    def local(self) -> bool:
        """True if it runs on this machine."""
        host = self.url.rpartition(":")[0].strip("[]")
        return bool(self.command) or self._is_unix or host in {"localhost", "::1"} or host.startswith("127.")

    @property
    def profile_kind(self) -> str:
        """The key of its latency tables: each server has its own."""
        return f"triton/{self.name}"


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal()
