"""Multi-level feedback queues: requests are in buckets by the time that they need, and buckets are drawn at random."""

from sluice.batcher.instances.base import Assignment, Contender, PoolView
from sluice.batcher.instances.in_order import first_possible
from sluice.batcher.state import Entry, ModelState

_MASK = (1 << 64) - 1


class MultilevelQueues:
    """Each bucket has the requests whose time remaining is of the same power of two; all are drawn equally often.

    The draws are the numbers of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) from `seed` on, so that they are the
    same whenever the same events are handled.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Nothing is learned."""

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The first request of a bucket that is drawn from those with requests.

        If no partition can take it, the request that came first of the other buckets has its place.
        """
        buckets: dict[int, list[Contender]] = {}
        for contender in contenders:
            buckets.setdefault(contender.remaining_ns.bit_length(), []).append(contender)
        drawn = buckets[sorted(buckets)[self._draw() % len(buckets)]]
        if not drawn[0].due:
            return None
        return first_possible(drawn, view) or first_possible([each for each in contenders if each not in drawn], view)

    def _draw(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)
