"""The way of models to remote workers: their descriptions, their files, and which workers have them already."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from sluice.gateway.worker_protocol.file_parts import FileReader
from sluice.gateway.worker_protocol.messages import FilePart, FileWanted, RemoteModel
from sluice.models.distribution.file_set import FileSet
from sluice.models.distribution.local_files import LocalFiles
from sluice.mps.ipc.messages import ModelFile

KEEP_S = 1.0
"""Workers that load a model within this time of each other, as at the start, get the same description of its files."""
MOST_PEERS = 4
"""Workers that another one hears of, which can give it a model."""


class RemoteModels:
    """Describes the models of this machine to workers, and reads their files for them, both off the event loop."""

    def __init__(self, local: LocalFiles) -> None:
        self._local = local
        self._reader = FileReader(local.open)
        self._hashing = asyncio.Lock()
        self._open: dict[ModelFile, asyncio.Task[FileSet]] = {}
        self._digests: dict[str, str] = {}
        self._holders: dict[str, dict[str, None]] = {}

    async def describe(self, file: ModelFile, peer: str) -> RemoteModel:
        """The message that loads a model on the worker with the address `peer` for other workers.

        Raises ConfigError for files that cannot be read or sent.
        """
        described = ModelFile(file.key, file.path, file.backend, (), file.batchable)
        task = self._open.get(described)
        if task is None:
            task = self._open[described] = asyncio.get_running_loop().create_task(self._files(described))
            task.add_done_callback(lambda done: self._described(described, done))
        files = await asyncio.shield(task)
        before = self._digests.get(file.key)
        self._digests[file.key] = files.digest
        if before is not None and before not in self._digests.values():
            self._holders.pop(before, None)  # the files have changed: no worker is sent for the old ones
        peers = [each for each in reversed(self._holders.get(files.digest, {})) if each != peer]
        return RemoteModel(
            file.key,
            file.path,
            file.backend,
            file.menu,
            file.batchable,
            file.confidences,
            file.table,
            file.config,
            file.memory_measured,
            file.declared,
            files,
            tuple(peers[:MOST_PEERS]),
        )

    async def read(self, wanted: FileWanted) -> FilePart:
        """A part of a file of a model that was described."""
        return await self._reader.answer(wanted)

    def held(self, key: str, peer: str) -> None:
        """Record that the worker with that address has the files of a model that was described."""
        if peer and (digest := self._digests.get(key)) is not None:
            self._holders.setdefault(digest, {})[peer] = None

    def forget(self, models: Iterable[str]) -> None:
        """Forget models that no worker holds."""
        for key in models:
            digest = self._digests.pop(key, "")
            if digest not in self._digests.values():
                self._holders.pop(digest, None)

    def gone(self, peer: str) -> None:
        """Record that a worker is gone, or its machine."""
        for digest, holders in list(self._holders.items()):
            if holders.pop(peer, "") is None and not holders:
                del self._holders[digest]

    def _described(self, file: ModelFile, task: asyncio.Task[FileSet]) -> None:
        # Who asked has the error; nobody may have waited for it.
        if task.cancelled() or task.exception() is not None:
            del self._open[file]
        else:
            task.get_loop().call_later(KEEP_S, self._open.pop, file)

    async def _files(self, file: ModelFile) -> FileSet:
        """The files of a model; one is hashed at a time, and only what has changed."""
        async with self._hashing:
            return await asyncio.to_thread(self._local.file_set, file.key, Path(file.path), file.backend)
