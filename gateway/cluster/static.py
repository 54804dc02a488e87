"""Workers at addresses that the configuration lists."""

import asyncio
from collections.abc import Mapping

from sluice.gateway.cluster.source import Placed

NOT_WANTED = "given up: no worker is wanted there"
RETRY_S = 5.0
"""A worker that serves another gateway is asked again after this time."""


class StaticSource:
    """Has a worker for each slot, at the address in `urls`, which maps slots to addresses; see `WorkerSource`."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)
        self._wanted = dict.fromkeys(self._urls)
        self._leased: set[str] = set()
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._placed: Placed | None = None

    def start(self, placed: Placed) -> None:
        """Place all workers that are wanted."""
        self._placed = placed
        for slot in self._wanted:
            placed(slot, self._urls[slot], "")

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        """Have workers for `count` slots; the first free ones are filled."""
        given_up = [slot for slot in leaving if slot in self._wanted]
        given_up += [slot for slot in reversed(self._wanted) if slot not in self._leased and slot not in leaving]
        for slot in given_up[: max(len(self._wanted) - max(count, 0), 0)]:
            del self._wanted[slot]
            self._forget_retry(slot)
            self._place(slot, None, NOT_WANTED)
        for slot in [slot for slot in self._urls if slot not in self._wanted][: max(count - len(self._wanted), 0)]:
            self._wanted[slot] = None
            self._place(slot, self._urls[slot], "")

    def leased(self, slot: str) -> None:
        """Record the session."""
        self._leased.add(slot)

    def lost(self, slot: str) -> None:
        """Record the end of the session."""
        self._leased.discard(slot)

    def refused(self, slot: str, holder: str) -> None:
        """Ask again later."""
        del holder
        self._forget_retry(slot)
        self._retries[slot] = asyncio.get_running_loop().call_later(RETRY_S, self._place, slot, self._urls[slot], "")

    def asked(self, slot: str, gateway: str) -> None:
        """Keep the worker: each gateway has its own list."""

    async def close(self) -> None:
        """Place nothing more."""
        self._placed = None
        for slot in list(self._retries):
            self._forget_retry(slot)

    def _forget_retry(self, slot: str) -> None:
        if (retry := self._retries.pop(slot, None)) is not None:
            retry.cancel()

    def _place(self, slot: str, url: str | None, reason: str) -> None:
        if self._placed is not None:
            self._placed(slot, url, reason)
