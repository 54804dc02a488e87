"""Workers at addresses that the configuration lists."""

from collections.abc import Mapping

from sluice.gateway.cluster.source import Placed

NOT_WANTED = "no worker is wanted there"


class StaticSource:
    """Has a worker for each slot, at the address in `urls`, which maps slots to addresses; see `WorkerSource`."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)
        self._wanted = len(self._urls)
        self._placed: Placed | None = None

    def start(self, placed: Placed) -> None:
        """Place all workers that are wanted."""
        self._placed = placed
        for slot in list(self._urls)[: self._wanted]:
            placed(slot, self._urls[slot], "")

    def want(self, count: int) -> None:
        """Have workers for the first `count` slots."""
        before, self._wanted = self._wanted, min(max(count, 0), len(self._urls))
        if self._placed is None:
            return
        slots = list(self._urls)
        for slot in slots[before : self._wanted]:
            self._placed(slot, self._urls[slot], "")
        for slot in slots[self._wanted : before]:
            self._placed(slot, None, NOT_WANTED)

    async def close(self) -> None:
        """Place nothing more."""
        self._placed = None
