"""The alarm that the runtime sets."""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """One alarm on the clock of the runtime."""

    def start(self, callback: Callable[[], None]) -> None:
        """Begin; `callback` is called when the alarm goes off."""
        ...

    def arm(self, due_ns: int | None) -> None:
        """Set the alarm, in place of an earlier setting; None turns it off."""
        ...

    def close(self) -> None:
        """Turn the alarm off for good."""
        ...
