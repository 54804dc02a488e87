"""Faults of clients: counted always, logged seldom."""

import logging
from collections import Counter

from sluice.gateway.observability.logs import log

LOG_PERIOD_S = 10.0
"""One line reports all faults of this time, so that clients cannot fill the log."""

REASONS = ("malformed", "head_too_large", "incomplete", "too_slow", "no_memory", "no_connections", "flood")

logger = logging.getLogger(__name__)


class ClientFaults:
    """Counts faults by the words in `REASONS`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._logged: Counter[str] = Counter()
        self._logged_s = -LOG_PERIOD_S

    def report(self, now_s: float) -> None:
        """Log the faults since the last line, if there are any and it is time for another line."""
        if now_s - self._logged_s < LOG_PERIOD_S or self.counts == self._logged:
            return
        log(logger, logging.WARNING, "faults of clients", **(self.counts - self._logged))
        self._logged = self.counts.copy()
        self._logged_s = now_s
