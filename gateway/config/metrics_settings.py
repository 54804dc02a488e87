"""Settings of the metrics of latencies under Triton's names, as its option `--metrics-config` has them."""

import math

import msgspec

DEFAULT_QUANTILES = "0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001"
"""Triton's default: quantiles, each with the error that is allowed."""
MOST_QUANTILES = 20


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies as counters (`nv_inference_*_duration_us`), and as summaries (`nv_inference_*_summary_us`)."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    summary_quantiles: str = DEFAULT_QUANTILES

    def __post_init__(self) -> None:
        self.quantiles  # noqa: B018 (raises ValueError)

    @property
    def quantiles(self) -> tuple[str, ...]:
        """The quantiles as they were written. Raises ValueError."""
        parts = [part.partition(":") for part in self.summary_quantiles.split(",")]
        if len(parts) > MOST_QUANTILES:
            raise ValueError(f"summary_quantiles: expected at most {MOST_QUANTILES} quantiles, got {len(parts)}")
        for quantile, _, error in parts:
            if not (_is_share(quantile) and _is_share(error)):
                raise ValueError(
                    "summary_quantiles: expected quantiles with their errors, such as 0.5:0.05,0.99:0.001, "
                    f"got '{self.summary_quantiles:.80}'"
                )
        return tuple(quantile.strip() for quantile, _, _ in parts)


def _is_share(text: str) -> bool:
    try:
        return math.isfinite(value := float(text)) and 0 <= value <= 1
    except ValueError:
        return False
