"""The settings of loading models in a worker."""

import math

import msgspec


class ModelLoadingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A loaded model is run at its batch sizes for about `run_ms`; `concurrent` models are created at a time."""

    run_ms: float = 3000
    concurrent: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.run_ms < math.inf:
            raise ValueError(f"expected a finite run_ms of at least 0, got {self.run_ms:g}")
        if self.concurrent < 1:
            raise ValueError(f"expected concurrent of at least 1, got {self.concurrent}")

    @property
    def run_ns(self) -> int:
        """The time for runs in nanoseconds."""
        return round(self.run_ms * 1_000_000)


DEFAULT_MODEL_LOADING = ModelLoadingSettings()
