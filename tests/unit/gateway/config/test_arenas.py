import pytest

from sluice.gateway.config.arenas import check_arenas
from sluice.gateway.config.server_config import ServerLimits
from sluice.models.errors import ConfigError


def test_arenas_that_the_machine_has_memory_for_are_right() -> None:
    check_arenas(ServerLimits(input_arena_mb=1, output_arena_mb=1))


@pytest.mark.parametrize("name", ["input_arena_mb", "output_arena_mb"])
@pytest.mark.parametrize(
    ("size", "reason"),
    # More than 47 bits of addresses, and more than 63 bits.
    [(1 << 28, "Cannot allocate memory"), (1 << 44, "beyond the address space")],
)
def test_an_arena_that_there_is_no_memory_for_is_named(name: str, size: int, reason: str) -> None:
    said = f"^limits: {name}: too large for the memory of this machine, got {size}: {reason}$"
    with pytest.raises(ConfigError, match=said):
        check_arenas(ServerLimits(**{name: size}))
