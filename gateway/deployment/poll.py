"""Keeps the served models equal to the repository by polling it."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.revision import Deployed
from sluice.gateway.observability.logs import log
from sluice.models.errors import RejectedError, ServingError
from sluice.models.regular_file import printable
from sluice.models.repository.names import is_foreign, why_foreign
from sluice.models.repository.stamps import FileStamps, file_stamps
from sluice.models.sources.source import SourceError

logger = logging.getLogger(__name__)

SETTLE_S = 1.0
"""Time for which the files of an entry must stay the same before they are loaded: a copy that is under way goes on."""


class Poll:
    """Loads entries that are new or changed in the repository, and unloads those that are gone or ambiguous.

    An entry that does not load is left alone until it, or something that it needs, changes again; it is forgotten when
    it is gone. An entry without room is tried again at every poll. An entry whose files are still being written is left
    alone as well.
    """

    def __init__(self, deployer: Deployer, interval_s: float) -> None:
        self._deployer = deployer
        self._interval_s = interval_s
        self._soon = asyncio.Event()
        self._seen: dict[str, FileStamps] = {}
        self._failed: set[str] = set()

    async def run(self) -> None:
        """Poll the repository until cancelled."""
        self._seen = {name: each.files for name, each in self._served().items() if each.files is not None}
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._soon.wait()
            self._soon.clear()
            try:
                await self.look(min(SETTLE_S, self._interval_s))
            except (OSError, RejectedError) as error:
                log(logger, logging.ERROR, "the repository cannot be read", reason=str(error))
            except Exception:  # the next look may succeed
                logger.exception("what is served could not be brought to what the repository has")

    def look_soon(self, interval_s: float) -> None:
        """Poll at once, or once more if a poll is under way, and then at this interval."""
        self._interval_s = interval_s
        self._soon.set()

    async def look(self, settle_s: float = 0) -> None:
        """Poll once, and load and unload the differences; raises OSError.

        What has changed is loaded only if it is the same `settle_s` later.
        """
        found, changed, foreign = await self._deployer.files.run(self._look)
        written: set[str] = set()
        if changed:
            await asyncio.sleep(settle_s)
            written = await self._deployer.files.run(
                lambda: {name for name in changed if self._files(name) != found[name]}
            )
        self._deployer.list_foreign(foreign)
        gone = [name for name, each in self._served().items() if each.files is not None and not found.get(name)]
        gone += sorted(self._failed - found.keys())
        before, self._seen = self._seen, found
        for name in written:  # the next look compares with what was there before all this
            self._seen[name] = before.get(name, {})
        self._failed &= found.keys()
        for name in gone:
            with suppress(ServingError):
                await self._deployer.unload(name)
        await asyncio.gather(*(self._load(name) for name in changed if name not in written))

    async def _load(self, name: str) -> None:
        try:
            await self._deployer.load(name)
        except RejectedError:
            self._seen.pop(name, None)
        except ServingError:  # it is logged, and the repository index shows it
            self._failed.add(name)
        except Exception:  # the next look tries again
            self._seen.pop(name, None)
            raise
        else:
            self._failed.discard(name)

    def _look(self) -> tuple[dict[str, FileStamps], list[str], dict[str, str]]:
        """The entries with their files (none for an ambiguous entry), the names to load, and why others are no models.

        Raises OSError if a directory cannot be read: nothing is known then of what is gone.
        """
        source = self._deployer.source
        try:
            source.refresh()
        except SourceError as error:
            log(logger, logging.ERROR, "a source cannot be read; its copy is served", reason=str(error))
        names = sorted(source.names())
        found = {name: self._files(name) for name in names if not is_foreign(name)}
        foreign = {printable(name): why_foreign(name) for name in names if is_foreign(name)}
        changed = {name for name, files in found.items() if self._seen.get(name) != files}
        again = {name for name in self._failed & found.keys() if source.needed({name}, {}, {}) & changed}
        return found, sorted(changed | again), foreign

    def _files(self, name: str) -> FileStamps:
        source = self._deployer.source
        entry = source.find(name)
        if entry is None or source.is_doubled(name):
            return {}
        try:
            return file_stamps(entry)
        except OSError:  # the entry is being changed, or is not readable
            return self._seen.get(name, {})

    def _served(self) -> Mapping[str, Deployed]:
        return self._deployer.dependencies.served
