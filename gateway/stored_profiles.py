"""Stored profiles at the start of a server: a worker that is given a latency table only warms its models."""

import logging
from collections.abc import Iterable, Mapping

from gateway.logs import log
from models.errors import ConfigError
from models.fingerprint import fingerprint
from models.profile import LatencyTable
from models.profile_file import Entry, ProfileMissing, ProfileStale, Source, model_hash, profile_path, read_profile
from models.repository import ModelEntry

logger = logging.getLogger(__name__)


def stored_entries(model: ModelEntry, kinds: Iterable[str]) -> dict[str, Entry]:
    """What the stored profile says of these kinds of partitions, simulated entries included; never raises.

    What is broken or stale is logged and left out.
    """
    path = profile_path(model.path, model.spec.name)
    try:
        profile = read_profile(path)
        hardware, sha256 = fingerprint(), model_hash(model.path)
    except ProfileMissing:
        return {}
    except (ConfigError, OSError) as error:
        _not_used(model, str(error))
        return {}
    entries: dict[str, Entry] = {}
    for kind in sorted(set(kinds)):
        try:
            entries[kind] = profile.of_kind(kind).usable(hardware, sha256).entry(kind)
        except ProfileMissing:
            continue
        except ProfileStale as error:
            _not_used(model, f"{path}: {kind}: {error}")
    return entries


def stored_tables(model: ModelEntry, entries: Mapping[str, Entry]) -> dict[str, LatencyTable]:
    """Of what is stored, the median latencies that were measured; what cannot be used is logged and left out.

    A table must reach the model's largest batch: beyond its last cell it would promise too much.
    """
    tables: dict[str, LatencyTable] = {}
    for kind, entry in entries.items():
        largest = entry.cells[-1].batch
        if entry.source is not Source.MEASURED:
            _not_used(model, f"the one for {kind} is simulated")
        elif largest < model.spec.menu[-1]:
            reason = f"the one for {kind} ends at batch {largest}, and batches may have {model.spec.menu[-1]} rows"
            _not_used(model, reason)
        else:
            tables[kind] = entry.table(50)
    return tables


def model_memory(model: ModelEntry, entries: Mapping[str, Entry]) -> int:
    """Bytes that a model takes where it is held: by what is stored, with its largest batch, else the size of its file.

    A worker runs every size once when it loads a model, and keeps the memory that this took.
    """
    rows = model.spec.menu[-1]
    stored = [
        entry.memory_rest_bytes + rows * (entry.memory_row_bytes or 0)
        for entry in entries.values()
        if entry.memory_rest_bytes is not None
    ]
    return max(stored) if stored else model.path.stat().st_size


def _not_used(model: ModelEntry, reason: str) -> None:
    log(logger, logging.WARNING, "the profile is not used", model=model.spec.key, reason=reason)
