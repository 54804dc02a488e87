"""Stored profiles that are usable here; a worker with a latency table only warms its models."""

import logging
from collections.abc import Iterable, Mapping

from sluice.batcher.interface.residency_config import Footprint
from sluice.gateway.observability.logs import log
from sluice.models.errors import ConfigError
from sluice.models.profiles.file import (
    FigureSource,
    ProfileEntry,
    ProfileMissing,
    ProfileStale,
    model_hash,
    profile_path,
    read_profile,
)
from sluice.models.profiles.hardware import hardware_id
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import ModelEntry

logger = logging.getLogger(__name__)


def look_up(model: ModelEntry, kinds: Iterable[str]) -> dict[str, ProfileEntry | Exception]:
    """The stored entry for each of these kinds of partitions, simulated ones included, or why it is not usable."""
    kinds = sorted(set(kinds))
    try:
        profile = read_profile(profile_path(model.path, model.spec.name))
        hardware, sha256 = hardware_id(), model_hash(model.path)
    except ProfileMissing:
        return dict.fromkeys(kinds, ProfileMissing("there is no stored profile"))
    except (ConfigError, OSError) as error:
        return dict.fromkeys(kinds, error)
    found: dict[str, ProfileEntry | Exception] = {}
    for kind in kinds:
        try:
            found[kind] = profile.of_kind(kind).usable(hardware, sha256).entry(kind)
        except (ProfileMissing, ProfileStale) as error:
            found[kind] = error
    return found


def shortfall(model: ModelEntry, entry: ProfileEntry) -> str:
    """The range of the model's batch sizes that a profile does not cover; "" if it covers all."""
    last, largest = entry.cells[-1].batch, model.spec.menu[-1]
    return f"ends at batch {last}, and batches may have {largest}" if last < largest else ""


def stored_entries(model: ModelEntry, kinds: Iterable[str]) -> dict[str, ProfileEntry]:
    """The entries that `look_up` finds; broken or stale ones are logged and left out."""
    found = look_up(model, kinds)
    reasons: list[str] = []
    for kind, error in found.items():
        if isinstance(error, ProfileStale):
            reasons.append(f"{profile_path(model.path, model.spec.name)}: {kind}: {error}")
        elif isinstance(error, Exception) and not isinstance(error, ProfileMissing):
            reasons.append(str(error))
    for reason in dict.fromkeys(reasons):  # a broken file is so for all kinds
        _not_used(model, reason)
    return {kind: entry for kind, entry in found.items() if isinstance(entry, ProfileEntry)}


def stored_tables(model: ModelEntry, entries: Mapping[str, ProfileEntry]) -> dict[str, LatencyTable]:
    """The measured median latencies of stored entries; those that are not usable are logged and left out."""
    tables: dict[str, LatencyTable] = {}
    for kind, entry in entries.items():
        if entry.source is not FigureSource.MEASURED:
            _not_used(model, f"the one for {kind} is simulated")
        elif entry.unenforced:
            _not_used(model, f"the one for {kind} was measured where the partition did not hold: {entry.unenforced[0]}")
        elif lacking := shortfall(model, entry):
            _not_used(model, f"the one for {kind} {lacking}")
        else:
            tables[kind] = entry.table(50)
    return tables


def model_memory(model: ModelEntry, entries: Mapping[str, ProfileEntry]) -> int:
    """Bytes that a model takes where it is held: as profiled with its largest batch, else the size of its file.

    A worker runs every size once when it loads a model, and keeps the memory that this took.
    """
    rows = model.spec.menu[-1]
    stored = [
        entry.memory_rest_bytes + rows * (entry.memory_row_bytes or 0)
        for entry in entries.values()
        if entry.memory_rest_bytes is not None
    ]
    return max(stored) if stored else model.path.stat().st_size


def footprints(model: ModelEntry, entries: Mapping[str, ProfileEntry]) -> dict[str, Footprint]:
    """The measured memory and load time of a model, by kind of partition."""
    found: dict[str, Footprint] = {}
    for kind, entry in entries.items():
        if entry.source is FigureSource.MEASURED and entry.memory_rest_bytes is not None:
            table = None if entry.unenforced or shortfall(model, entry) else entry.table(50)
            # A worker runs every size once before it reports the model.
            load_ns = (entry.load_ns or 0) + (entry.warm_up_ns or 0) + sum(cell.p50_ns for cell in entry.cells)
            found[kind] = Footprint(entry.memory_rest_bytes, entry.memory_row_bytes or 0, load_ns, table)
    return found


def _not_used(model: ModelEntry, reason: str) -> None:
    log(logger, logging.WARNING, "the profile is not used", model=model.spec.key, reason=reason)
