"""Names of kinds of partitions. Partitions of one kind are equally fast, so a latency table belongs to a kind."""

import re
from typing import NamedTuple

_KIND = re.compile(
    r"cpu(?P<cores>[1-9][0-9]{0,3})(/x(?P<slowdown>[0-9]+(\.[0-9]+)?))?"
    r"|(mig-(?P<profile>[1-7]g(\.[0-9]+gb)?([+-](?!c[0-9])[a-z0-9.]+)*)|mps-(?P<percent>[0-9]{1,3}))"
    r"(\+c(?P<host_cores>[1-9][0-9]{0,3}))?"
)


class PartitionKind(NamedTuple):
    """The parts of a name: `cores` and their slowdown, a MIG `profile`, or the `percent` of a GPU under MPS.

    The worker of a part of a GPU has `host_cores` for its own threads (0: all that there are).
    """

    cores: int = 0
    slowdown: float = 1.0
    profile: str = ""
    percent: int = 0
    host_cores: int = 0


def parse_kind(name: str) -> PartitionKind | None:
    """Parse a name such as `cpu2`, `cpu1/x3`, `mig-1g`, `mig-1g.10gb+c4` or `mps-20`; None for any other text."""
    match = _KIND.fullmatch(name)
    if match is None:
        return None
    return PartitionKind(
        int(match["cores"] or 0),
        float(match["slowdown"] or 1),
        match["profile"] or "",
        int(match["percent"] or 0),
        int(match["host_cores"] or 0),
    )


def with_host_cores(kind: str, cores: int) -> str:
    """The name of a kind of parts of a GPU whose workers have that many cores; 0: all that there are."""
    return f"{kind}+c{cores}" if cores else kind
