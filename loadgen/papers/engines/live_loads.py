"""Loads of a model for a second function: by the worker that has it, and by a second worker on the same share.

Each worker belongs to a server of its own, and both servers have the same repository.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from sluice.loadgen.papers.engines.image_models import save_classifier
from sluice.loadgen.papers.engines.live_server import live_server
from sluice.loadgen.papers.engines.live_shares import CHANNELS, emulated_gpu, post
from sluice.loadgen.papers.experiment import ExperimentFinding, GateVerdict
from sluice.models.errors import ServingError

WEIGHTS = 23_500_000
"""Floats that a Python function loads: 94 MB, as much as the network has."""
PUBLISHED = (-0.26, -0.14)
"""The time to load VGG19 from a file of the sandbox, against a volume, as a difference."""
_ROUNDS = 9
_MODEL, _COPY, _FUNCTION = "model", "copy", "function"
_PIPELINE = f"""stages:
  run: {{model: {_MODEL}, inputs: {{x: request.x}}}}
outputs:
  y: {{from: [run.y]}}
"""
_CONFIG = """backend: "python"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
"""
_CODE = """from pathlib import Path

import numpy as np
import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.load(Path(__file__).with_name("weights.npy"))

    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", each)]) for each in inputs]
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


def save_network(version: Path) -> None:
    """Save the network of experiments with cores as a version of a model."""
    save_classifier(version / "model.onnx", 0, CHANNELS)


def save_python(version: Path) -> None:
    """Save a function in Python that loads its weights as a version of a model."""
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_CODE)
    np.save(version / "weights.npy", np.ones(WEIGHTS, np.float32))


def time_loads(folder: Path, partition: Mapping[str, object], save: Callable[[Path], None], rounds: int) -> LoadTimes:
    """Load in turns, after a first time; what takes turns is in the other order in each other round.

    Both servers have the `partition`, and `save` saves the model, and its copy.
    """
    save(folder / "repository" / _MODEL / "1")
    save(folder / "repository" / _COPY / "1")
    (folder / "repository" / _FUNCTION).mkdir()
    (folder / "repository" / _FUNCTION / "pipeline.yaml").write_text(_PIPELINE)
    (folder / "second").mkdir()
    (folder / "second" / "repository").symlink_to(folder / "repository")
    # Batches are not timed at load: that takes as long for any worker.
    config = {"control": "explicit", "model_loading": {"run_ms": 0}, "partitions": [partition]}
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


def load_findings(core: int) -> Iterator[ExperimentFinding]:
    """On a core and on an emulated share: a second function loads a copy of the model, or shares the loaded one."""
    with tempfile.TemporaryDirectory() as folder:
        partition = {"name": "cpu0", "cores": [core]}
        on_core = time_loads(Path(folder), partition, save_network, _ROUNDS)
    with tempfile.TemporaryDirectory() as folder, emulated_gpu(Path(folder)) as share:
        emulated = time_loads(Path(folder), share("share0", 50), save_python, _ROUNDS)
    for place, times in (("a core", on_core), ("an emulated share of 50 %", emulated)):
        same_s, other_s, shared_s = map(median, (times.same_s, times.other_s, times.shared_s))
        is_same = PUBLISHED[0] <= times.same <= PUBLISHED[1]
        yield ExperimentFinding(
            f"load of a copy on {place} by the worker that has the model, against a second worker",
            f"{times.same:+.1%} ({same_s:.3f} s, {other_s:.3f} s)",
            "-14 to -26 %",
            verdict=GateVerdict.SHOWN if is_same else GateVerdict.DIFFERS,
            why=""
            if is_same
            else "the paper loads VGG19 into the GPU again in both cases, from the sandbox's own "
            "files and from a volume; here both workers read the same file system",
        )
        yield ExperimentFinding(
            f"a second function of the model on {place}, against the load by a second worker",
            f"{times.shared:+.1%} ({shared_s:.3f} s)",
            why="one worker has the weights of a model once, whichever functions use it: nothing is loaded",
        )


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
