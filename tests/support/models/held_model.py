"""A model that occupies the only partition until the test releases it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry, model_hash, write_profile
from sluice.models.profiles.hardware import hardware_id
from sluice.models.profiles.measurement import Cell
from sluice.models.units import NS_PER_S
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import until

T = TypeVar("T")

PROMISED_NS = 60 * NS_PER_S
"""Latency in the model's profile: the server prepares the next batch only then, and admits only requests that can wait.
"""
MODEL = """
import pathlib, time

hold, begun = (pathlib.Path(__file__).with_name(name) for name in ("hold", "begun"))

def infer(inputs):
    if hold.exists():
        begun.touch()
    while hold.exists():
        time.sleep(0.005)
    return {output: inputs[given] for given, output in PAIRS}
"""
TENSOR = '{ name: "%s" data_type: TYPE_FP32 dims: -1 }'


class HeldModel:
    """An echoing model, like those of `save_timed`, for a server with one partition on all cores."""

    def __init__(
        self,
        repository: Path,
        name: str,
        config: str = "",
        max_batch_size: int = 1,
        pairs: Sequence[tuple[str, str]] = (("x", "y"),),
        promised_ns: int = PROMISED_NS,
    ) -> None:
        model = repository / name / "1" / "model.py"
        model.parent.mkdir(parents=True)
        model.write_text(f"PAIRS = {list(pairs)}\n{MODEL}")
        tensors = [f"input {TENSOR % given} output {TENSOR % output}" for given, output in pairs]
        (repository / name / "config.pbtxt").write_text(
            " ".join([f'backend: "python" max_batch_size: {max_batch_size}', *tensors, config])
        )
        entry = ProfileEntry(
            fingerprint=hardware_id(),
            kind=f"cpu{len(available_cores())}",
            source=FigureSource.MEASURED,
            sha256=model_hash(model),
            cells=(Cell(max_batch_size, promised_ns, promised_ns, promised_ns, 1),),
        )
        write_profile(model.with_name("profile.json"), ModelProfile(entries=(entry,)))
        self._hold, self._begun = model.with_name("hold"), model.with_name("begun")

    @contextmanager
    def holding(self, ask: Callable[[], T]) -> Iterator[Future[T]]:
        """Call `ask` in a thread, wait until the model runs a batch, and hold that batch until the block ends."""
        self._begun.unlink(missing_ok=True)
        self._hold.touch()
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(ask)
            try:
                until(lambda: self._begun.exists() or answer.done())
                yield answer
            finally:
                self._hold.unlink()
