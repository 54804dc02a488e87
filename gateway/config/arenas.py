"""A check that the machine has the memory for the configured tensor arenas."""

from sluice.gateway.config.server_config import ServerLimits
from sluice.models.errors import ConfigError
from sluice.mps.ipc.arena import Region


def check_arenas(limits: ServerLimits) -> None:
    """Raise ConfigError, which names the setting, for an arena that cannot be created; frees all memory again."""
    for name in ("input_arena_mb", "output_arena_mb"):
        size = getattr(limits, name)
        try:
            Region.create("sluice-trial", size << 20).close()
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "beyond the address space"
            raise ConfigError(
                f"limits: {name}: too large for the memory of this machine, got {size}: {reason}"
            ) from error
