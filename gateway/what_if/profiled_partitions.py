"""The partitions that models are measured on: one of each configured kind, or sets of cores."""

import math
from collections.abc import Iterable, Sequence

from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.server_config import ServerConfig
from sluice.models.errors import ConfigError
from sluice.models.profiles.partition_kind import parse_kind
from sluice.mps.partitions.cpu import available_cores, check_partitions, default_partitions
from sluice.mps.partitions.partition import CpuPartition, Partition


def profiled_partitions(text: str | None, config: ServerConfig) -> tuple[list[Partition], Sequence[Partition]]:
    """The partitions of the option `--partitions` (None: all kinds), and those that a server would have besides.

    Partitions of one kind are equally fast, so the one with the most memory is used. Raises ConfigError for a kind that
    cannot be measured here, PartitionError for partitions that a server would refuse.
    """
    if text is not None and text.isdecimal():
        return _of_each_kind(default_partitions(int(text))), ()
    configured = configured_partitions(config)
    check_partitions(configured)
    found = _of_each_kind(configured)
    if text is None:
        return found, configured
    known = {each.profile_kind: each for each in found}
    return _of_each_kind(known.get(kind) or _core_set(kind, known) for kind in text.split(",")), configured


def _of_each_kind(partitions: Iterable[Partition]) -> list[Partition]:
    chosen: dict[str, Partition] = {}
    for each in partitions:
        known = chosen.setdefault(each.profile_kind, each)
        if _memory_mb(each) > _memory_mb(known):
            chosen[each.profile_kind] = each
    return list(chosen.values())


def _memory_mb(partition: Partition) -> float:
    """The memory bound of a worker."""
    limit = partition.hard_memory_mb if isinstance(partition, CpuPartition) else partition.memory_mb
    return math.inf if limit is None else limit


def _core_set(kind: str, known: Iterable[str]) -> CpuPartition:
    """Cores of that kind, even if other partitions have them."""
    cores = available_cores()
    parsed = parse_kind(kind)
    if parsed is None or not parsed.cores:
        others = [each for each in known if not each.startswith("cpu")]
        listed = f", or of the configuration {', '.join(others)}" if others else "; GPUs need --config FILE"
        raise ConfigError(
            f"--partitions: {kind} cannot be measured here, expected kinds cpu1 to cpu{len(cores)}, or slower ones "
            f"such as cpu1/x3{listed}"
        )
    if parsed.cores > len(cores):
        raise ConfigError(f"--partitions: {kind} has more than the {len(cores)} cores that this process may use")
    try:
        return CpuPartition(kind, cores[: parsed.cores], parsed.slowdown)
    except ValueError as error:
        raise ConfigError(f"--partitions: {kind}: {error}") from error
