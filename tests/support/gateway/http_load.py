"""Steady open-loop traffic over HTTP: each client sends requests at fixed times."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

TIMEOUT_S = 60.0


class Sent(NamedTuple):
    """A request: its due time on the monotonic clock, the latency from then, and its status (0: no answer)."""

    due_s: float
    took_s: float
    status: int


class HttpLoad:
    """`clients` threads with a connection each that together send `rate` single-row requests a second to a model."""

    def __init__(self, http_port: int, model: str, clients: int, rate: float, width: int = 64) -> None:
        self.sent: list[Sent] = []
        self._port = http_port
        self._path = f"/v2/models/{model}/infer"
        tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}
        self._body = json.dumps({"inputs": [tensor]}).encode()
        self._stopping = threading.Event()
        begin_s = time.monotonic() + 0.05
        self._threads = [
            threading.Thread(target=self._run, args=(begin_s + number / rate, clients / rate))
            for number in range(clients)
        ]

    def _run(self, due_s: float, every_s: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        while not self._stopping.wait(max(due_s - time.monotonic(), 0)):
            try:
                connection.request("POST", self._path, self._body)
                response = connection.getresponse()
                response.read()
                status = response.status
            except (OSError, http.client.HTTPException):
                status = 0
            self.sent.append(Sent(due_s, time.monotonic() - due_s, status))
            due_s += every_s
        connection.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send while the block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join()

    @property
    def failures(self) -> list[Sent]:
        """The requests without a successful answer."""
        return [each for each in self.sent if each.status != 200]


def percentiles_ms(sent: Sequence[Sent], *percents: float) -> list[float]:
    """Percentiles of the latency in milliseconds; NaN without requests."""
    took_ms = [each.took_s * 1e3 for each in sent]
    return [float(np.percentile(took_ms, percent)) if took_ms else float("nan") for percent in percents]
