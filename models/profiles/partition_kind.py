"""Kinds of partitions by name: partitions of one kind are equally fast, so that a latency table is of a kind."""

import re
from typing import NamedTuple

_KIND = re.compile(
    r"cpu(?P<cores>[1-9][0-9]{0,3})(/x(?P<slowdown>[0-9]+(\.[0-9]+)?))?"
    r"|mig-(?P<profile>[1-7]g(\.[0-9]+gb)?([+-][a-z0-9.]+)*)"
    r"|mps-(?P<percent>[0-9]{1,3})"
)


class PartitionKind(NamedTuple):
    """What a name says: so many `cores` and how much slower they are, a MIG `profile`, or `percent` of a GPU by MPS."""

    cores: int = 0
    slowdown: float = 1.0
    profile: str = ""
    percent: int = 0


def parse_kind(name: str) -> PartitionKind | None:
    """What `cpu2`, `cpu1/x3`, `mig-1g`, `mig-1g.10gb` or `mps-20` stands for; None for what is no such name."""
    match = _KIND.fullmatch(name)
    if match is None:
        return None
    return PartitionKind(
        int(match["cores"] or 0), float(match["slowdown"] or 1), match["profile"] or "", int(match["percent"] or 0)
    )
