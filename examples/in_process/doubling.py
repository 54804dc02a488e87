"""A server without sockets for `loadgen run --target inproc:examples.in_process.doubling:serve --model double`.

It shows all that the load generator asks of one. This one answers at the end of each turn of the event loop, all
requests of the turn in one batch.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sluice.models.errors import ModelNotFound
from sluice.models.tensors.spec import DataType, TensorSpec

Array = npt.NDArray[np.generic]
Done = Callable[[str, Mapping[str, Array], str, str], None]

X = TensorSpec("x", DataType.FP32, (-1, 4))
Y = TensorSpec("y", DataType.FP32, (-1, 4))


class DoublingServer:
    """Serves one model, which doubles its input."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Array, Done]] = {}
        self._calls = 0

    async def start(self) -> None:
        """Begin: there is nothing to load."""
        self._loop = asyncio.get_running_loop()

    def metadata(self, model: str) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """The inputs and outputs of the model."""
        if model != "double":
            raise ModelNotFound(f"no model '{model}'; expected 'double'")
        return [X], [Y]

    def prepare(self, model: str, tensors: Mapping[str, Array], parameters: Mapping[str, float | int]) -> object:
        """The request as `submit` takes it: its rows."""
        return tensors["x"]

    def submit(self, request: object, done: Done, explain: bool) -> object:
        """Begin with a request; `done` is called once, with `ok`, `shed` or `error`."""
        assert isinstance(request, np.ndarray)
        if not self._waiting:
            self._loop.call_soon(self._run_batch)
        self._calls += 1
        self._waiting[self._calls] = (request, done)
        return self._calls

    def cancel(self, call: object) -> None:
        """Give up a call."""
        assert isinstance(call, int)
        self._waiting.pop(call, None)

    async def stop(self) -> None:
        """End: nothing is left running."""
        self._waiting.clear()

    def _run_batch(self) -> None:
        batch, self._waiting = list(self._waiting.values()), {}
        if batch:
            doubled = np.concatenate([rows for rows, _ in batch]) * 2
            ends = np.cumsum([len(rows) for rows, _ in batch])
            for (rows, done), end in zip(batch, ends.tolist(), strict=True):
                done("ok", {"y": doubled[end - len(rows) : end]}, "", "")


def serve() -> DoublingServer:
    """The factory: makes the server of a run."""
    return DoublingServer()
