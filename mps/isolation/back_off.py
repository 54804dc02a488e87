"""The delay before a process that was lost, such as a worker, is restarted."""

FIRST_S = 0.5
LAST_S = 30.0
USEFUL_S = 10.0


class BackOff:
    """No delay after the first loss, then 0.5 s, doubling up to 30 s.

    That is for processes that are of no use: the loss of one that was ready for 10 s, or has answered, is a first one.
    """

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._ready_s: float | None = None

    def ready(self, now_s: float) -> None:
        """The process is ready."""
        self._ready_s = now_s

    def lost(self, now_s: float, *, answered: bool = False) -> float:
        """The process has exited, and had `answered` something or not; returns the delay in seconds."""
        if answered or (self._ready_s is not None and now_s - self._ready_s >= USEFUL_S):
            self._delay_s = 0.0
        self._ready_s = None
        delay_s = self._delay_s
        self._delay_s = min(max(FIRST_S, 2 * delay_s), LAST_S)
        return delay_s
