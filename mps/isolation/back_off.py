"""How long to wait before a worker that died is started again."""

FIRST_S = 0.5
LAST_S = 30.0
HEALTHY_AFTER_S = 60.0


class BackOff:
    """Nothing after the first loss, then 0.5 s, doubling up to 30 s; 60 s of health make the next loss a first one."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._ready_s: float | None = None

    def ready(self, now_s: float) -> None:
        """Note that the worker came up."""
        self._ready_s = now_s

    def lost(self, now_s: float) -> float:
        """Note that the worker is gone; returns the seconds to wait."""
        if self._ready_s is not None and now_s - self._ready_s >= HEALTHY_AFTER_S:
            self._delay_s = 0.0
        self._ready_s = None
        delay_s = self._delay_s
        self._delay_s = min(max(FIRST_S, 2 * delay_s), LAST_S)
        return delay_s
