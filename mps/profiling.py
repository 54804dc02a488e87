"""Measures a model on a CPU partition, in a process pinned to it just as a worker is: `python -m mps.profiling`.

The process writes what it measured, or why it could not, to a file that it inherits: what libraries print is no part
of that.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, TypeVar

import msgspec

from models.errors import BackendFailed, ServingError
from models.profile import LatencyTable
from models.profile_file import Measurement
from mps.partition import CpuPartition
from mps.pinning import environment, pin

if TYPE_CHECKING:
    from models.backends.base import Backend

TIMEOUT_S = 900.0
"""Time that a measurement may take in all, of loading and of slow batches too."""

_ROOT = str(Path(__file__).resolve().parents[1])


class _Failure(msgspec.Struct, tag="failure"):
    """The model could not be measured."""

    reason: str


class _Profile(msgspec.Struct, tag="profile"):
    """What `measure_on` asks for."""

    measurement: Measurement


class _Timing(msgspec.Struct, tag="timing"):
    """What `time_on` asks for."""

    table: LatencyTable


_Result = TypeVar("_Result", _Profile, _Timing)


def measure_on(
    partition: CpuPartition, path: Path, backend: str, batchable: bool, batches: Sequence[int], config: str = ""
) -> Measurement:
    """Measure a model file at ascending batch sizes, on all cores of a partition; blocks until it is done.

    `config` is its configuration in JSON, "" without one.

    Raises PartitionError for a partition that cannot be had, BackendFailed for a model that does not run there.
    """
    return _run(partition, path, backend, batchable, batches, config, _Profile).measurement


def time_on(
    partition: CpuPartition, path: Path, backend: str, batchable: bool, batches: Sequence[int], config: str = ""
) -> LatencyTable:
    """Time a model file as a worker does that loads it, which is quick and rough; otherwise as `measure_on`."""
    return _run(partition, path, backend, batchable, batches, config, _Timing).table


def _run(
    partition: CpuPartition,
    path: Path,
    backend: str,
    batchable: bool,
    batches: Sequence[int],
    config: str,
    wanted: type[_Result],
) -> _Result:
    """What the process found."""
    variables = environment(partition)
    python_path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    with TemporaryFile() as result:
        command = [sys.executable, "-P", "-m", "mps.profiling", "--result", str(result.fileno())]
        command += ["--backend", backend, "--batches", _listed(batches), *(["--batchable"] if batchable else [])]
        command += ["--cores", _listed(partition.cores), "--slowdown", str(partition.slowdown)]
        command += [*(["--quick"] if wanted is _Timing else []), "--config", config, str(path.resolve())]
        try:
            done = subprocess.run(
                command,
                env=os.environ | variables | {"PYTHONPATH": python_path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(result.fileno(),),
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BackendFailed(
                f"{path}: measuring took more than {TIMEOUT_S:.0f} s; name fewer batch sizes"
            ) from error
        result.seek(0)
        written = result.read()
    try:
        found = msgspec.json.decode(written, type=wanted | _Failure)
    except msgspec.DecodeError:  # it did not get as far as to say why
        said = done.stderr.decode(errors="replace").strip().splitlines()
        found = _Failure(said[-1] if said else f"the process ended with status {done.returncode}")
    if isinstance(found, _Failure):
        raise BackendFailed(f"{path}: cannot be measured on {partition.name}: {found.reason}")
    return found


def main() -> int:
    """Pin, measure, write the result; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mps.profiling", description="Measures a model on some cores.")
    parser.add_argument("--result", required=True, type=int, help="the descriptor to write to")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--config", default="")
    parser.add_argument("--batchable", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--batches", required=True, type=_numbers)
    parser.add_argument("--cores", required=True, type=_numbers)
    parser.add_argument("--slowdown", required=True, type=float)
    parser.add_argument("path")
    options = parser.parse_args()
    result: _Profile | _Timing | _Failure
    try:
        cores = pin(options.cores)
        # Array libraries start threads when they are imported: not before the process is pinned.
        from models.backends.configured import load_backend
        from models.backends.timed import Slowed
        from models.measure import measure_table
        from models.measure_profile import measure_profile

        def load() -> "Backend":
            backend = load_backend(options.backend, options.path, len(cores), options.config)
            return backend if options.slowdown == 1 else Slowed(backend, options.slowdown)

        if options.quick:
            result = _Timing(measure_table(load(), options.batchable, options.batches))
        else:
            result = _Profile(measure_profile(load, options.batchable, options.batches))
    except (ServingError, OSError, MemoryError) as error:
        result = _Failure(str(error) or type(error).__name__)
    with open(options.result, "wb") as file:
        file.write(msgspec.json.encode(result))
    return int(isinstance(result, _Failure))


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
