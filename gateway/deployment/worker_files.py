"""Model files in the form in which workers load them.

A link stays a link: what belongs to a model, such as external data, lies beside the link.
"""

from collections.abc import Iterable, Mapping

import msgspec

from sluice.batcher.interface.config import ScheduledModel
from sluice.gateway.deployment.stored_profiles import stored_tables
from sluice.models.profiles.file import ProfileEntry
from sluice.models.repository.scan import ModelEntry
from sluice.mps.ipc.messages import ModelFile


def file_to_measure(entry: ModelEntry, menu: tuple[int, ...]) -> ModelFile:
    """A model's file with the batch sizes that it is to be measured at; it reports no confidences."""
    spec = entry.spec
    path = str(entry.path.absolute())
    return ModelFile(spec.key, path, entry.backend, menu, spec.batchable, config=spec.config, declared=spec.declared)


def worker_files(
    models: Iterable[ScheduledModel],
    entries: Mapping[str, ModelEntry],
    stored: Mapping[str, Mapping[str, ProfileEntry]],
    kinds: Mapping[str, str],
) -> dict[str, dict[str, ModelFile]]:
    """The files of models, by partition and key, each with the stored latencies of its partition.

    `entries` and `stored` have the models' entries and profiles by key; models without an entry in `stored` are left
    out. `kinds` has the kinds of the partitions by name.
    """
    files = [
        ModelFile(
            model.key,
            str(entry.path.absolute()),
            entry.backend,
            entry.spec.menu,
            entry.spec.batchable,
            tuple((each.output, each.confidence) for each in model.confidences),
            config=entry.spec.config,
            declared=entry.spec.declared,
        )
        for model in models
        if model.key in stored
        for entry in [entries[model.key]]
    ]
    tables = {file.key: stored_tables(entries[file.key], stored[file.key]) for file in files}
    return {
        partition: {file.key: msgspec.structs.replace(file, table=tables[file.key].get(kind)) for file in files}
        for partition, kind in kinds.items()
    }
