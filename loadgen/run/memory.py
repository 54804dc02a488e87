"""The memory that the queries of a run take."""

from sluice.models.errors import ConfigError
from sluice.mps.partitions.host import memory_limit_bytes

BYTES_PER_QUERY = 150
"""Memory of a query: its columns in the record, and those that the statistics sort."""


def check_memory(queries: int) -> None:
    """Raise `ConfigError` for a schedule larger than the memory that this process may use."""
    limit_bytes = memory_limit_bytes()
    if (needed := queries * BYTES_PER_QUERY) > limit_bytes:
        raise ConfigError(
            f"schedule: {queries} queries take {needed / 1e6:.1f} MB of memory, "
            f"and there are {limit_bytes / 1e6:.1f} MB; "
            "expected a shorter --duration or a lower --rate"
        )
