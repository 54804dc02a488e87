"""Trial runs of a model whose file does not say whether it can be batched.

They run in a process of their own, `python -m sluice.models.backends.trial`, before the model is loaded anywhere: a
model may take the process that runs it with it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from sluice.models.backends.base import Backend
from sluice.models.backends.first_runs import FIRST_FILLING, Filling, Shapes, blank_batch, fillings
from sluice.models.errors import ServingError, first_line
from sluice.models.processes import module_environment
from sluice.models.regular_file import beside
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import VARIABLE, TensorSpec
from sluice.models.triton_config.file_tensors import FileTensors, without_batch
from sluice.models.triton_config.onnx_outline import is_inside, read_outline

TRIAL_TIMEOUT_S = 60.0
SIZES = (1, 2, 3)
"""The numbers of rows that are tried."""
MAX_REMEMBERED = 1024
"""Models whose runs are remembered."""
MOST_DIFFERENCE = 0.1
"""The change of an output by its batch that counts as none, relative to the largest value: quantized models have it."""


class TrialOrder(msgspec.Struct, frozen=True):
    """A model file, the items of its inputs, the outputs of interest, and the rows of each input in each run."""

    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    runs: tuple[dict[str, int], ...]


class TrialRun(msgspec.Struct, frozen=True):
    """The shapes of the outputs of a run, or the reason why it failed.

    `mixed` is an output whose rows are others in this batch than alone, "" if there is none.
    """

    outputs: dict[str, tuple[int, ...]] = {}
    error: str = ""
    mixed: str = ""


def tried(tensors: FileTensors, path: Path, shapes: Shapes | None = None) -> FileTensors:
    """Run the model at a few sizes, and return its tensors with what the runs show.

    `shapes` are sizes for variable dimensions of items. A model that cannot be run so stays as its file says. Blocks
    for up to `TRIAL_TIMEOUT_S`. The same files are not run again, wherever links to them are: the check of a copied
    repository reads all its models.
    """
    names = [tensor.name for tensor in tensors.inputs]
    runs = [dict.fromkeys(names, rows) for rows in SIZES]
    if len(names) > 1:
        runs.append(dict.fromkeys(names, 2) | {names[0]: 3})
    outputs = tuple(tensor.name for tensor in tensors.outputs)
    order = TrialOrder(str(path), without_batch(tensors.inputs), outputs, dict(shapes or {}), tuple(runs))
    key = _key(order)
    seen = _remembered.get(key)
    if seen is None:
        seen = _run(order)
        if not any(run.error for run in seen[: len(SIZES)]):  # an error may be one of the machine
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = seen
    return judged(tensors, seen)


def judged(tensors: FileTensors, runs: Sequence[TrialRun]) -> FileTensors:
    """The tensors with what the runs show: those of `SIZES`, and one in which the first input has one row more."""
    alike, unlike = runs[: len(SIZES)], runs[len(SIZES) :]
    for rows, run in zip(SIZES, alike, strict=True):
        if run.error:
            failed = f"a trial run of {rows} {'row' if rows == 1 else 'rows'} failed: {run.error}"
            return tensors._replace(no_batches=f"{tensors.no_batches} ({failed})")
    reason = _rows_missing(tensors.outputs, alike)
    if not reason and (mixed := alike[-1].mixed):
        reason = f"a row of output '{mixed}' depends on the other rows of its batch; set max_batch_size if it may"
    if not reason and tensors.no_batches and any(not run.error for run in unlike):
        inputs = " and ".join(f"'{tensor.name}'" for tensor in tensors.inputs)
        reason = f"inputs {inputs} may have different numbers of rows; set max_batch_size if they never have"
    ranks = {name: {len(run.outputs[name]) for run in alike} for name in alike[0].outputs}
    known = {name for name in tensors.unranked if len(ranks[name]) == 1}
    outputs = [
        _replaced(tensor, (VARIABLE,) * min(ranks[tensor.name])) if tensor.name in known else tensor
        for tensor in tensors.outputs
    ]
    if not reason:
        outputs = [_replaced(tensor, (VARIABLE, *tensor.shape[1:])) for tensor in outputs]
    return tensors._replace(
        outputs=tuple(outputs),
        batchable=not reason,
        no_batches=reason,
        unranked=tensors.unranked - known,
    )


def _rows_missing(outputs: Sequence[TensorSpec], runs: Sequence[TrialRun]) -> str:
    """The reason why the first dimension of some output is not the rows; "" if it is for all."""
    for tensor in outputs:
        shapes = [run.outputs[tensor.name] for run in runs]
        for rows, shape in zip(SIZES, shapes, strict=True):
            if shape[:1] != (rows,):
                given = "a row" if rows == 1 else f"{rows} rows"
                return (
                    f"output '{tensor.name}' has the shape {list(shape)} for {given}; "
                    "export the model with a row of each output for each row of its inputs"
                )
        if len({shape[1:] for shape in shapes}) > 1:
            return (
                f"output '{tensor.name}' has the number of rows behind its first dimension as well: {list(shapes[-1])}"
            )
    return ""


def _replaced(tensor: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    return msgspec.structs.replace(tensor, shape=shape)


_remembered: dict[bytes, Sequence[TrialRun]] = {}


def _key(order: TrialOrder) -> bytes:
    """All that runs depend on: the order, and which files the model and its weights are."""
    path = Path(order.path)
    places = [path, *(beside(path, each) for each in sorted(read_outline(path).external) if is_inside(each))]
    files = [
        (each.st_dev, each.st_ino, each.st_mtime_ns, each.st_ctime_ns, each.st_size) for each in map(os.stat, places)
    ]
    return msgspec.json.encode((files, msgspec.structs.replace(order, path="")))


def _run(order: TrialOrder) -> Sequence[TrialRun]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sluice.models.backends.trial"],
            input=msgspec.json.encode(order),
            env=module_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=tuple[TrialRun, ...])
    except subprocess.TimeoutExpired:
        error = f"it took longer than {TRIAL_TIMEOUT_S:g} s"
    except (OSError, msgspec.DecodeError) as failed:
        error = str(failed) if isinstance(failed, OSError) else f"its process ended with status {done.returncode}"
    return [TrialRun(error=error)] * len(order.runs)


def _run_order(order: TrialOrder) -> tuple[TrialRun, ...]:
    from sluice.models.backends import onnxruntime

    try:
        backend = onnxruntime.load(order.path, 1, wanted=order.outputs)
    except ServingError as error:
        return (TrialRun(error=first_line(error)),) * len(order.runs)

    def run(rows: Mapping[str, int], filling: Filling) -> TrialRun:
        inputs: dict[str, Array] = {}
        for tensor in order.inputs:
            inputs |= blank_batch([tensor], rows[tensor.name], order.shapes, filling)
        try:
            return TrialRun({name: array.shape for name, array in backend.run(inputs).items()})
        except ServingError as error:
            return TrialRun(error=first_line(error))

    def seen(filling: Filling) -> tuple[TrialRun, ...]:
        runs = [run(rows, filling) for rows in order.runs]
        last = len(SIZES) - 1
        if not any(each.error for each in runs[: last + 1]):
            mixed = _mixed(backend, blank_batch(order.inputs, SIZES[-1], order.shapes, filling))
            runs[last] = msgspec.structs.replace(runs[last], mixed=mixed)
        return tuple(runs)

    first = seen(FIRST_FILLING)
    if first[0].error:
        for filling in fillings(order.inputs, order.shapes):
            if not run(order.runs[0], filling).error:
                return seen(filling)
    return first


def _mixed(backend: Backend, blank: Mapping[str, Array]) -> str:
    """An output whose rows are others in a batch than alone; "" if there is none, or if runs cannot tell.

    Only numbers with fractions are compared: a class may change with the last bit. Models whose outputs are random show
    nothing.
    """
    random = np.random.default_rng(0)
    inputs = {name: _made_up(array, random) for name, array in blank.items()}
    rows = len(next(iter(inputs.values())))

    def outputs(first: int, last: int) -> dict[str, Array]:
        found = backend.run({name: array[first:last] for name, array in inputs.items()})
        return {name: array.copy() for name, array in found.items() if array.dtype.kind == "f"}

    try:
        batch, again = outputs(0, rows), outputs(0, rows)
        alone = [outputs(row, row + 1) for row in range(rows)]
    except ServingError:  # zeros are taken, and these are not
        return ""
    for name, array in batch.items():
        each = [answer[name] for answer in alone]
        if any(one.shape != (1, *array.shape[1:]) for one in each) or not _is_close(array, again[name]):
            continue
        if not _is_close(array, np.concatenate(each)):
            return name
    return ""


def _made_up(array: Array, random: np.random.Generator) -> Array:
    """Contents that differ from row to row."""
    if array.dtype.kind == "f":
        return random.standard_normal(array.shape).astype(array.dtype)
    return random.integers(0, 2, array.shape).astype(array.dtype) if array.dtype.kind in "iub" else array


def _is_close(one: Array, other: Array) -> bool:
    if one.shape != other.shape or not one.size:
        return one.shape == other.shape
    pair = [np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0) for array in (one, other)]
    return bool(np.abs(pair[0] - pair[1]).max() <= MOST_DIFFERENCE * np.abs(pair[0]).max() + np.finfo(np.float32).eps)


def main() -> None:
    """Read an order from standard input, write its runs to standard output."""
    signal.alarm(round(TRIAL_TIMEOUT_S) + 1)  # in case the process that waits for this one has ended
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialOrder)
    sys.stdout.buffer.write(msgspec.json.encode(_run_order(order)))


if __name__ == "__main__":
    main()
