"""Answers questions about a worker server; see `sluice.gateway.worker_protocol.about`."""

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import msgspec

from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.about import METHOD, MOST_PADDING, About, AskAbout, CacheRoom
from sluice.gateway.worker_server.settings import WorkerSettings
from sluice.models.distribution.cache import ModelCache
from sluice.models.errors import RequestError


class AboutNow(NamedTuple):
    """The part of `About` that changes."""

    state: str
    holder: str
    cores: tuple[int, ...]
    models: tuple[str, ...]


_decoder = msgspec.msgpack.Decoder(AskAbout)


class AboutService:
    """Answers for the worker server of these settings, about which `now` says what changes."""

    def __init__(
        self,
        settings: WorkerSettings,
        cache: ModelCache,
        now: Callable[[], AboutNow],
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._now = now

    @property
    def handlers(self) -> dict[str, Any]:
        """The handler of the method, by its name."""
        return {METHOD: grpc.unary_unary_rpc_method_handler(self._about, None, msgspec.msgpack.encode)}

    async def _about(self, message: bytes, call: object) -> About:
        del call
        try:
            question = _decoder.decode(message)
        except msgspec.MsgspecError as error:
            raise RequestError(f"the question cannot be read: {error}") from error
        if not 0 <= question.answer_padding <= MOST_PADDING:
            raise RequestError(f"answer_padding: expected 0 to {MOST_PADDING}, got {question.answer_padding}")
        room = await asyncio.to_thread(_room, self._cache)
        settings, now = self._settings, self._now()
        return About(
            server_version(),
            settings.label,
            settings.node,
            settings.partition.profile_kind,
            now.state,
            now.holder,
            time.time_ns(),
            now.cores,
            now.models,
            room,
            bytes(question.answer_padding),
        )


def _room(cache: ModelCache) -> CacheRoom | None:
    """The room of a cache, also of one that is still to be made; None if its directory cannot be read."""
    there = next(each for each in (cache.root, *cache.root.absolute().parents) if each.exists())
    try:
        used_bytes = cache.used_bytes if there == cache.root else 0
        return CacheRoom(str(cache.root), used_bytes, cache.max_bytes, shutil.disk_usage(there).free)
    except OSError:
        return None
