"""Loads of a model for a second function: by the worker that has it, and by a second worker on the same share.

A share is a core here. Each worker belongs to a server of its own, and both servers have the same repository.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from sluice.loadgen.papers.engines.image_models import save_classifier
from sluice.loadgen.papers.engines.live_server import live_server
from sluice.loadgen.papers.engines.live_shares import CHANNELS, post
from sluice.models.errors import ServingError

_MODEL, _COPY, _FUNCTION = "model", "copy", "function"
_PIPELINE = f"""stages:
  run: {{model: {_MODEL}, inputs: {{x: request.x}}}}
outputs:
  y: {{from: [run.y]}}
"""


class LoadTimes(msgspec.Struct, frozen=True):
    """Times in seconds by round until a second function of a model can be asked.

    `shared_s` are those of a function that uses the model which its worker has. `same_s` are those of the same worker,
    and `other_s` those of a second worker, where the function has a copy of the model, which is loaded.
    """

    shared_s: tuple[float, ...]
    same_s: tuple[float, ...]
    other_s: tuple[float, ...]

    @property
    def shared(self) -> float:
        """The extra time of a function that shares the model over a load by a second worker, as a part of that."""
        return _more(self.shared_s, self.other_s)

    @property
    def same(self) -> float:
        """The extra time of a load by the worker that has the model over one by a second worker, as a part of that."""
        return _more(self.same_s, self.other_s)


def time_loads(folder: Path, core: int, rounds: int) -> LoadTimes:
    """Load in turns, after a first time; what takes turns is in the other order in each other round."""
    save_classifier(folder / "repository" / _MODEL / "1" / "model.onnx", 0, CHANNELS)
    save_classifier(folder / "repository" / _COPY / "1" / "model.onnx", 0, CHANNELS)
    (folder / "repository" / _FUNCTION).mkdir()
    (folder / "repository" / _FUNCTION / "pipeline.yaml").write_text(_PIPELINE)
    (folder / "second").mkdir()
    (folder / "second" / "repository").symlink_to(folder / "repository")
    # Batches are not timed at load: that takes as long for any worker.
    config = {"control": "explicit", "model_loading": {"run_ms": 0}, "partitions": [{"name": "cpu0", "cores": [core]}]}
    with ExitStack() as stack:
        first = stack.enter_context(live_server(folder, {**config, "load_models": [_MODEL]}))
        second = stack.enter_context(live_server(folder / "second", config))
        turns: list[Callable[[], float]] = [
            lambda: _load_s(first, _FUNCTION),
            lambda: _load_s(first, _COPY),
            lambda: _load_s(second, _COPY),
        ]
        times: list[list[float]] = [[], [], []]
        for number in range(rounds + 1):
            for place in (0, 1, 2) if number % 2 else (2, 1, 0):
                times[place].append(turns[place]())
    return LoadTimes(*(tuple(each[1:]) for each in times))


def _load_s(url: str, model: str) -> float:
    """The time until a model or a pipeline can be asked; it is unloaded again."""
    began_s = time.monotonic()
    _repository(url, model, "load")
    took_s = time.monotonic() - began_s
    _repository(url, model, "unload")
    return took_s


def _repository(url: str, model: str, action: str) -> None:
    answer = post(url, f"/v2/repository/models/{model}/{action}", {})
    if answer.status != 200:
        raise ServingError(f"the server answered {answer.status}: {answer.body:.200}")


def _more(times_s: tuple[float, ...], other_s: tuple[float, ...]) -> float:
    return median(times_s) / median(other_s) - 1
