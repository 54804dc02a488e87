"""Measures a model on a CPU partition, in a process pinned to it just as a worker is: `python -m mps.profiling`.

The process writes what it measured to its standard output, as JSON.
"""

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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


def measure_on(
    partition: CpuPartition, path: Path, backend: str, batchable: bool, batches: Sequence[int]
) -> Measurement:
    """Measure a model file at ascending batch sizes, on all cores of a partition; blocks until it is done.

    Raises PartitionError for a partition that cannot be had, BackendFailed for a model that does not run there.
    """
    return msgspec.json.decode(_run(partition, path, backend, batchable, batches), type=Measurement)


def time_on(partition: CpuPartition, path: Path, backend: str, batchable: bool, batches: Sequence[int]) -> LatencyTable:
    """Time a model file as a worker does that loads it, which is quick and rough; otherwise as `measure_on`."""
    return msgspec.json.decode(_run(partition, path, backend, batchable, batches, "--quick"), type=LatencyTable)


def _run(
    partition: CpuPartition, path: Path, backend: str, batchable: bool, batches: Sequence[int], *extra: str
) -> bytes:
    """What the process writes."""
    variables = environment(partition)
    python_path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "mps.profiling", "--backend", backend, "--batches", _listed(batches)]
    command += ["--cores", _listed(partition.cores), "--slowdown", str(partition.slowdown)]
    command += [*(["--batchable"] if batchable else []), *extra, str(path.resolve())]
    try:
        done = subprocess.run(
            command,
            env=os.environ | variables | {"PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendFailed(f"{path}: measuring took more than {TIMEOUT_S:.0f} s; name fewer batch sizes") from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        raise BackendFailed(f"{path}: cannot be measured on {partition.name}: {reason[-1]}")
    return done.stdout


def main() -> int:
    """Pin, measure, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mps.profiling", description="Measures a model on some cores.")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--batchable", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--batches", required=True, type=_numbers)
    parser.add_argument("--cores", required=True, type=_numbers)
    parser.add_argument("--slowdown", required=True, type=float)
    parser.add_argument("path")
    options = parser.parse_args()
    try:
        cores = pin(options.cores)
        # Array libraries start threads when they are imported: not before the process is pinned.
        from models.backends.timed import Slowed
        from models.measure import measure_table
        from models.measure_profile import measure_profile

        module = importlib.import_module(f"models.backends.{options.backend}")

        def load() -> "Backend":
            backend: Backend = module.load(options.path, len(cores))
            return backend if options.slowdown == 1 else Slowed(backend, options.slowdown)

        measured: Measurement | LatencyTable
        if options.quick:
            measured = measure_table(load(), options.batchable, options.batches)
        else:
            measured = measure_profile(load, options.batchable, options.batches)
    except (ServingError, OSError, MemoryError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(measured))
    return 0


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
