"""Steady traffic of single images to one gateway or another, with every answer checked."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException

from examples.digits.build import load_digits
from sluice.models.tensors.arrays import Array

CLIENTS = 10
TIMEOUT_S = 20.0
CASCADE, ENSEMBLE = "digits-cascade", "digits-ensemble"


def probabilities(url: str, model: str, images: Array) -> Array:
    """The answers of a gateway for all images."""
    server = client.InferenceServerClient(url)
    rows = [
        _ask(server, model, images[first : first + 30], TIMEOUT_S).as_numpy("probs")
        for first in range(0, len(images), 30)
    ]
    server.close()
    return np.concatenate(rows)


def labelled_images() -> tuple[Array, Array]:
    """The test images, as the models take them, and their labels."""
    digits = load_digits()
    return digits.test_raw.astype(np.uint8).reshape(-1, 1, 8, 8), digits.test_labels


class Load:
    """`rate` requests a second for the cascade, by clients that go on at the next gateway when theirs has gone.

    `answered_s` are the times of all right answers, and `failed` says of the others what was wrong.
    """

    def __init__(self, urls: Sequence[str], rate: float, expected: Array) -> None:
        self.sent = 0
        self.moved = 0
        self.answered_s: list[float] = []
        self.failed: list[str] = []
        self._urls, self._pause_s, self._expected = list(urls), CLIENTS / rate, expected
        self._images, _ = labelled_images()
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def longest_gap_s(self) -> float:
        """The longest time without an answer."""
        return float(np.diff(sorted(self.answered_s)).max())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send until the block ends; then all requests have been answered, or have failed."""
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _run(self, number: int) -> None:
        urls = list(self._urls)
        server = client.InferenceServerClient(urls[0])
        row, due_s = number, time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._pause_s, time.monotonic() - 1)
            row = (row + CLIENTS) % len(self._images)
            with self._lock:
                self.sent += 1
            while True:
                try:
                    answer = _ask(server, CASCADE, self._images[row : row + 1], TIMEOUT_S).as_numpy("probs")
                except InferenceServerException as error:
                    if len(urls) > 1 and "UNAVAILABLE" in str(error.status()):
                        server.close()
                        server = client.InferenceServerClient(urls.pop(1))
                        with self._lock:
                            self.moved += 1
                        continue
                    problem = str(error)
                else:
                    is_right = np.allclose(answer[0], self._expected[row], atol=1e-5)
                    problem = "" if is_right else f"row {row}: {answer[0]}, expected {self._expected[row]}"
                break
            with self._lock:
                if problem:
                    self.failed.append(problem)
                else:
                    self.answered_s.append(time.monotonic())
        server.close()


def _ask(server: client.InferenceServerClient, model: str, images: Array, timeout_s: float) -> client.InferResult:
    tensor = client.InferInput("raw", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    return server.infer(model, [tensor], client_timeout=timeout_s)
