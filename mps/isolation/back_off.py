"""The delay before a lost worker is restarted."""

FIRST_S = 0.5
LAST_S = 30.0
HEALTHY_AFTER_S = 60.0


class BackOff:
    """No delay after the first loss, then 0.5 s, doubling up to 30 s; 60 s of health make the next loss a first one."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._ready_s: float | None = None

    def ready(self, now_s: float) -> None:
        """The worker is ready."""
        self._ready_s = now_s

    def lost(self, now_s: float) -> float:
        """The worker has exited; returns the delay in seconds."""
        if self._ready_s is not None and now_s - self._ready_s >= HEALTHY_AFTER_S:
            self._delay_s = 0.0
        self._ready_s = None
        delay_s = self._delay_s
        self._delay_s = min(max(FIRST_S, 2 * delay_s), LAST_S)
        return delay_s
