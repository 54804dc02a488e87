"""Keeps the served models equal to the repository by polling it."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.revision import Deployed
from sluice.gateway.observability.logs import log
from sluice.models.errors import RejectedError, ServingError
from sluice.models.repository.entry import FileStamps, file_stamps

logger = logging.getLogger(__name__)


class Poll:
    """Loads entries that are new or changed in the repository, and unloads those that are gone or ambiguous.

    An entry that does not load is left alone until it, or something that it needs, changes again; it is forgotten when
    it is gone. An entry without room is tried again at every poll.
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
                await self.look()
            except OSError as error:
                log(logger, logging.ERROR, "the repository cannot be read", reason=str(error))
            except Exception:  # the next look may succeed
                logger.exception("what is served could not be brought to what the repository has")

    def look_soon(self, interval_s: float) -> None:
        """Poll at once, or once more if a poll is under way, and then at this interval."""
        self._interval_s = interval_s
        self._soon.set()

    async def look(self) -> None:
        """Poll once, and load and unload the differences; raises OSError."""
        found, changed = await asyncio.to_thread(self._look)
        gone = [name for name, each in self._served().items() if each.files is not None and not found.get(name)]
        gone += sorted(self._failed - found.keys())
        self._seen = found
        self._failed &= found.keys()
        for name in gone:
            with suppress(ServingError):
                await self._deployer.unload(name)
        await asyncio.gather(*map(self._load, changed))

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

    def _look(self) -> tuple[dict[str, FileStamps], list[str]]:
        """The entries with their files (none for an ambiguous entry), and the names to load."""
        source = self._deployer.source
        found = {name: self._files(name) for name in sorted(source.names())}
        changed = {name for name, files in found.items() if self._seen.get(name) != files}
        again = {name for name in self._failed & found.keys() if source.needed({name}, {}, {}) & changed}
        return found, sorted(changed | again)

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
