"""Workers of scaled classes in virtual time: slots get workers that take time to start, and lose them."""

from collections.abc import Callable, Iterator

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import SetPartitions


class SimulatedWorkers:
    """Which slots are to have workers, and from when on they have them; `start_ns` is the time that one takes to start.

    The lowest free slots are filled first. Slots go as `SetPartitions` says, of those that are not up the last ones.
    """

    def __init__(self, spec: SchedulerSpec, start_ns: Callable[[str], int]) -> None:
        self._slots = {scaled.name: scaled.slots for scaled in spec.scaling.classes}
        self._start_ns = start_ns
        self._up_ns: dict[str, int] = {}
        self.is_slot = frozenset(slot for slots in self._slots.values() for slot in slots).__contains__

    def is_due(self, name: str, now_ns: int) -> bool:
        """True if a slot has a worker that is up, or comes up now."""
        return self._up_ns.get(name, now_ns + 1) <= now_ns

    def restart_ns(self, name: str, now_ns: int) -> int | None:
        """When a slot whose worker was lost has the next one; None if it is to have none."""
        if name not in self._up_ns:
            return None
        self._up_ns[name] = now_ns + self._start_ns(name)
        return self._up_ns[name]

    def follow(self, order: SetPartitions, now_ns: int) -> tuple[list[str], list[tuple[int, str]]]:
        """Carry out an order: the slots that lose their workers now, and those that get one, with the time."""
        lost = [name for name in order.leaving if self._up_ns.pop(name, now_ns + 1) <= now_ns]
        slots = self._slots[order.name]
        for name in self._last_absent(slots, now_ns):
            if sum(slot in self._up_ns for slot in slots) <= order.count:
                break
            del self._up_ns[name]
        coming = []
        for name in slots:
            if sum(slot in self._up_ns for slot in slots) >= order.count:
                break
            if name not in self._up_ns:
                self._up_ns[name] = now_ns + self._start_ns(name)
                coming.append((self._up_ns[name], name))
        return lost, coming

    def _last_absent(self, slots: tuple[str, ...], now_ns: int) -> Iterator[str]:
        """The slots whose workers are not up yet, the last one first."""
        return (name for name in reversed(slots) if self._up_ns.get(name, 0) > now_ns)
