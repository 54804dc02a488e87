"""Loads, reloads and unloads models and pipelines while requests run.

New revisions are loaded and warmed beside the old ones; then the registry names the new one, and the old one goes when
its last request is done. A failure on the way leaves everything as it was.
"""

import asyncio
import errno
import itertools
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.file_threads import FileThreads
from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.model_notes import log_batching
from sluice.gateway.deployment.override import Override
from sluice.gateway.deployment.registry import UNLOADED, ModelRegistry, VersionStatus
from sluice.gateway.deployment.revision import Deployed, Revision, RevisionSource, read_revision
from sluice.gateway.deployment.rollout import PreparedRevision, Rollout
from sluice.gateway.observability.logs import log
from sluice.gateway.partitions.inventory import Inventory
from sluice.models.errors import (
    BackendUnavailable,
    ConfigError,
    ModelNotFound,
    RejectedError,
    RequestError,
    ServingError,
    UnsupportedModel,
)
from sluice.models.regular_file import printable
from sluice.models.sources.source import SourceError

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 600.0
RECYCLE_TIMEOUT_S = 300.0


class Deployer:
    """Changes what is served; calls about names that affect each other wait for each other, others run together.

    `dependencies` has everything that is served, by name. With `recycle`, the workers that held a model are replaced
    after an unload.
    """

    def __init__(
        self,
        source: RevisionSource,
        dependencies: DependencyGraph,
        registry: ModelRegistry,
        rollout: Rollout,
        load_waiter: LoadWaiter,
        inventory: Inventory,
        *,
        recycle: bool,
    ) -> None:
        self.source = source
        self.dependencies = dependencies
        self._registry = registry
        self._rollout = rollout
        self._load_waiter = load_waiter
        self._inventory = inventory
        self._recycle = recycle
        self.files = FileThreads()
        self._numbers = itertools.count(1)
        self._busy: set[str] = set()
        self._turn = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def load(self, name: str, override: Override | None = None, *, always: bool = False) -> None:
        """Serve a name as it is in the repository now, or with an override.

        If it is served so already, nothing happens, unless it is `always` to be loaded: then it is read and loaded
        again as a whole, once for all that ask while it is loaded. Everything that needs it is reloaded with it, and
        what it needs is loaded if it is not there. Raises RequestError when that fails, RejectedError when there is no
        room for it now, ModelNotFound without an entry of the name, and ForbiddenRequest if the override has code and
        may not.
        """
        before = self.dependencies.served.get(name)
        try:
            if override is not None:
                await asyncio.to_thread(_write, override, name)
            overrides = {} if override is None else {name: override}
            if always:
                await self._refresh(name)
            async with self._exclusive(name, overrides):
                always = always and self.dependencies.served.get(name) is before
                await self._load(name, self.dependencies.overrides(without=name) | overrides, always=always)
        except BaseException:
            if override is not None:
                override.discard()
            raise

    async def unload(self, name: str, *, with_dependencies: bool = False, recycle: bool = False) -> None:
        """Stop serving a name, and everything that needs it; a name that could not be served is forgotten.

        `with_dependencies` also unloads what only this name needs. With `recycle`, returns when the workers that held
        any of it have returned all their memory; otherwise its last requests may still run.
        """
        async with self._exclusive(name, {}):
            leaving, stranded = self.dependencies.remove(name, with_dependencies=with_dependencies)
            if name not in leaving:
                self._registry.forget(name)
            for each, was in leaving.items():
                state = VersionStatus.UNLOADING, ""
                if each in stranded:
                    state = VersionStatus.UNAVAILABLE, f"model '{name}', which it needs, was unloaded"
                self._registry.set_unavailable(each, {str(pipeline.version): state for pipeline in was.pipelines})
                log(logger, logging.INFO, "unloading", name=each)
            holders = {holder for key in _models(leaving) for holder in self._inventory.holders(key)}
            gone = self._start_task(self._retire(leaving, stranded))
        if recycle or (self._recycle and leaving):
            try:
                async with asyncio.timeout(RECYCLE_TIMEOUT_S):
                    await asyncio.shield(gone)  # the unload goes on if the caller stops waiting
                    await self._rollout.recycle(sorted(holders))
            except TimeoutError as error:
                waited = f"within {RECYCLE_TIMEOUT_S:g} s"
                raise ServingError(f"'{name}' is unloaded, but its memory was not freed {waited}") from error
            except asyncio.CancelledError:
                if gone.cancelled():
                    raise RejectedError("the server is stopping") from None
                raise

    def list_foreign(self, reasons: Mapping[str, str]) -> None:
        """Show these directories of the repository, with the reasons why they are no models, and no others."""
        self._registry.list_foreign(reasons)

    def close(self) -> None:
        """Refuse present and future changes, and remove the files that clients gave."""
        self._registry.start_draining()
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._load_waiter.close()
        self.files.close()
        for override in self.dependencies.overrides().values():
            override.discard()

    # -- loading

    async def _refresh(self, name: str) -> None:
        """Bring the copies of sources up to date; raises RequestError if one cannot be read."""
        try:
            await self.files.run(self.source.refresh)
        except SourceError as error:
            raise RequestError(f"load failed for model '{name}': {error}") from error

    async def _load(self, name: str, overrides: Mapping[str, Override], *, always: bool) -> None:
        if name not in overrides and self.source.entry(name, overrides) is None:
            overrides = self.dependencies.overrides()  # a client may have given its files before
        if self.source.entry(name, overrides) is None:
            raise ModelNotFound(f"failed to load '{name}', failed to poll from model repository")
        served = self.dependencies.served
        names = self.source.needed({name, *self.dependencies.dependents({name})}, served, overrides)
        returning = self.dependencies.returning(names)
        names |= self.source.needed(returning, served, overrides)
        number = next(self._numbers)
        try:
            # A model that workers could not load is tried again.
            reread = () if self._registry.broken(name) is None else {name}
            revision = _whole(await self._revision(names, number, overrides, reread), returning)
            if self._is_same(name, revision, overrides):
                if not always:
                    return
                revision = _whole(await self._revision(names, number, overrides, {name}), returning)
            prepared = await self._prepare(names, number, revision, overrides)
            await self._load_and_wait(prepared)
        except BaseException as error:
            reason = printable(str(error)) or "loading was cancelled"
            for override in overrides.values():
                reason = override.without_directory(reason)
            if name not in served:
                unsupported = isinstance(error, UnsupportedModel)
                self._registry.set_unavailable(name, {"": (VersionStatus.UNAVAILABLE, reason)}, unsupported=unsupported)
            log(logger, logging.ERROR, "load failed", name=name, reason=reason)
            if not isinstance(error, ConfigError | RejectedError | OSError):
                raise
            kind = RejectedError if isinstance(error, RejectedError) else RequestError
            raise kind(f"load failed for model '{name}': {reason}") from error
        self._switch_over(prepared.deployed)

    async def _prepare(
        self,
        names: Collection[str],
        number: int,
        revision: Mapping[str, Deployed],
        overrides: Mapping[str, Override],
    ) -> PreparedRevision:
        """Prepare a revision; models that lack a confidence that a new pipeline needs are read again."""
        reread: set[str] = set()
        served, remote = self.dependencies.served, {entry.spec.name for entry in self.source.remote.values()}
        while True:
            prepared = await self._rollout.prepare(revision, served)
            if not prepared.outdated:
                return prepared
            if beside := prepared.outdated & remote:
                lacking = "does not report the confidence that the new pipeline needs"
                raise ConfigError(f"model '{min(beside)}' of a Triton server {lacking}")
            reread |= prepared.outdated
            wanted = self.source.needed({*names, *reread, *self.dependencies.dependents(reread)}, served, overrides)
            revision = _whole(await self._revision(wanted, number, overrides, reread), ())

    async def _revision(
        self, names: Collection[str], number: int, overrides: Mapping[str, Override], reread: Collection[str]
    ) -> Revision:
        served = dict(self.dependencies.served)
        revision = await self.files.run(lambda: read_revision(self.source, names, number, served, overrides, reread))
        for name, override in overrides.items():
            if (read := revision.deployed.get(name)) is not None:
                override.check(read.models)
        return revision

    async def _load_and_wait(self, prepared: PreparedRevision) -> None:
        """Load and warm new models; raises as `Rollout.load`."""
        before = {}
        try:
            for name in prepared.deployed.keys() - self.dependencies.served.keys():
                before[name] = {version: (state, reason) for version, state, reason in self._registry.states(name)}
                versions = [str(pipeline.version) for pipeline in prepared.deployed[name].pipelines]
                self._registry.set_unavailable(name, dict.fromkeys(versions, (VersionStatus.LOADING, "")))
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await self._rollout.load(prepared)
        except BaseException as error:
            for name, states in before.items():
                self._registry.set_unavailable(name, states)
            added = {pipeline.name for pipeline in prepared.change.pipelines}
            self._rollout.retire(added)
            self._start_task(self._rollout.end(added, {model.key for model in prepared.change.models}))
            if isinstance(error, TimeoutError):
                raise ConfigError(f"it was not loaded within {LOAD_TIMEOUT_S:g} s") from error
            raise

    def _switch_over(self, revision: Mapping[str, Deployed]) -> None:
        before = {name: self.dependencies.served[name] for name in revision if name in self.dependencies.served}
        self.dependencies.serve(revision)
        for name, each in revision.items():
            self._registry.serve(name, each.pipelines)
            log_batching(each.models)
            log(logger, logging.INFO, "loaded", name=name, versions=[pipeline.version for pipeline in each.pipelines])
        self._start_task(self._retire(before, ()))

    def _is_same(self, name: str, revision: Mapping[str, Deployed], overrides: Mapping[str, Override]) -> bool:
        before, served = self.dependencies.served.get(name), self.dependencies.served
        if before is None or before.override is not overrides.get(name) or self._registry.broken(name):
            return False
        return before.files == revision[name].files and revision.keys() <= served.keys()

    # -- unloading

    def _retire(self, before: Mapping[str, Deployed], stranded: Collection[str]) -> Coroutine[Any, Any, None]:
        """Send no more requests to what was served before; the result waits until nothing of it is left."""
        served = self.dependencies.served.values()
        pipelines = {pipeline.key for each in before.values() for pipeline in each.pipelines}
        pipelines -= {pipeline.key for each in served for pipeline in each.pipelines}
        models = _models(before) - _models(self.dependencies.served)
        self._rollout.retire(pipelines)
        return self._end(pipelines, models, before, stranded)

    async def _end(
        self,
        pipelines: Collection[str],
        models: Collection[str],
        before: Mapping[str, Deployed],
        stranded: Collection[str],
    ) -> None:
        await self._rollout.end(pipelines, models)
        for name, each in before.items():
            if name in stranded:
                continue
            now = self.dependencies.served.get(name)
            if each.override is not None and (now is None or now.override is not each.override):
                await asyncio.to_thread(each.override.discard)
            if any(state is VersionStatus.UNLOADING for _, state, _ in self._registry.states(name)):
                states = {str(pipeline.version): (VersionStatus.UNAVAILABLE, UNLOADED) for pipeline in each.pipelines}
                self._registry.set_unavailable(name, states)

    # -- turns

    @asynccontextmanager
    async def _exclusive(self, name: str, overrides: Mapping[str, Override]) -> AsyncIterator[None]:
        """Run one change at a time of all that involve the same names."""
        async with self._turn:
            while (involved := self.dependencies.involved(self.source, name, overrides)) & self._busy:
                await self._turn.wait()
            self._busy |= involved
        try:
            if self._registry.draining:
                raise RejectedError("the server is stopping")
            yield
        finally:
            self._busy -= involved
            async with self._turn:
                self._turn.notify_all()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            task.cancel()
        return task


_NAMES_AT_FAULT = (errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EINVAL)
"""Errors of files that come from the names that a client gives, and not from this machine."""


def _write(override: Override, name: str) -> None:
    subject = f"the files of '{name:.80}' cannot be stored"
    try:
        override.write(name)
    except ValueError as error:
        raise RequestError(f"{subject}: {error}") from error
    except OSError as error:
        if error.errno in _NAMES_AT_FAULT:
            raise RequestError(f"{subject}: {error}") from error
        raise BackendUnavailable(
            f"{subject} on the server: {error}; its TMPDIR must name a directory that can be written and has room"
        ) from error


def _models(deployed: Mapping[str, Deployed]) -> set[str]:
    return {entry.spec.key for each in deployed.values() for entry in each.models}


def _whole(revision: Revision, returning: Collection[str]) -> Mapping[str, Deployed]:
    """The names that were read, if none is broken that is not only returning. Raises ConfigError."""
    if reasons := {name: reason for name, reason in revision.broken.items() if name not in returning}:
        kind = UnsupportedModel if revision.unsupported.issuperset(reasons) else ConfigError
        raise kind("; ".join(reasons.values()))
    return revision.deployed
