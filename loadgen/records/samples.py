"""Samples: the tensors that queries carry, from a file or at random, and the labels of their rows."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.seeds import generator
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec

Tensors = Mapping[str, npt.NDArray[np.generic]]

RANDOM = "random"
_RANDOM_SAMPLES = 64
_RANDOM_TEXT_BYTES = 8


class TargetModel(msgspec.Struct, frozen=True):
    """A model's metadata from the target; shapes as on the wire, with a leading -1 for a model that can be batched.

    `versions` are those that the target says it serves.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str = ""
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class SampleSource:
    """The source of samples: `file` is the path of an .npz file, or `random`.

    `inputs` maps model inputs to arrays where the names differ, `labels` names the array of expected classes, and
    `subset` an array of row numbers to use, in that order.
    """

    file: str = RANDOM
    inputs: dict[str, str] = field(default_factory=dict)
    labels: str = ""
    subset: str = ""


@dataclass(frozen=True)
class Samples:
    """Rows of model inputs, each array (rows, *item), with `labels` (rows,) int64 or None.

    Sample i is the i-th group of `rows_per_query` consecutive rows; the last one may have fewer. Unless `batched`, the
    tensors of a query have no batch dimension and a sample is one row.
    """

    inputs: dict[str, Array]
    labels: npt.NDArray[np.int64] | None
    rows_per_query: int
    batched: bool

    def __len__(self) -> int:
        return len(range(0, self._total, self.rows_per_query))

    def rows_of(self, sample: int) -> slice:
        """The rows that make up a sample."""
        return slice(sample * self.rows_per_query, (sample + 1) * self.rows_per_query)

    @property
    def _total(self) -> int:
        return len(next(iter(self.inputs.values())))

    def tensors(self, sample: int) -> Tensors:
        """The tensors of a sample in the shapes that the model takes."""
        rows = self.rows_of(sample)
        return {name: array[rows] if self.batched else array[rows.start] for name, array in self.inputs.items()}


def load_samples(source: SampleSource, metadata: TargetModel, rows_per_query: int, seed: int) -> Samples:
    """Load the samples of `source` in the model's datatypes; raises `ConfigError` when they do not fit the model."""
    if rows_per_query < 1:
        raise ConfigError(f"--rows: expected at least 1, got {rows_per_query}")
    if source.file == RANDOM:
        if source.labels or source.inputs or source.subset:
            raise ConfigError("--input, --labels and --subset: name arrays of a file; expected --samples FILE.npz")
        inputs = _random_inputs(metadata, rows_per_query, seed)
        batched = all(tensor.shape[:1] == (VARIABLE,) for tensor in metadata.inputs)
        labels = None
    else:
        inputs, labels, batched = _read_file(source, metadata)
    if not batched and rows_per_query != 1:
        raise ConfigError(f"--rows: the model cannot be batched; expected 1, got {rows_per_query}")
    return Samples(inputs, labels, rows_per_query, batched)


def _read_file(
    source: SampleSource, metadata: TargetModel
) -> tuple[dict[str, Array], npt.NDArray[np.int64] | None, bool]:
    arrays = open_npz(source.file, "--samples")
    subset = _named(arrays, source.subset, source.file) if source.subset else None
    inputs: dict[str, Array] = {}
    ranks = set()
    for tensor in metadata.inputs:
        array = _rows(_named(arrays, source.inputs.get(tensor.name, tensor.name), source.file), subset, source)
        inputs[tensor.name] = _cast(array, tensor, source.file)
        ranks.add(array.ndim - len(tensor.shape))
    if ranks not in ({0}, {1}):
        expected = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in metadata.inputs)
        raise ConfigError(f"--samples {source.file}: expected arrays of shape (rows, *item) for inputs {expected}")
    for tensor in metadata.inputs:
        _check_item(inputs[tensor.name], tensor, source.file)
    lengths = {name: len(array) for name, array in inputs.items()}
    labels = None
    if source.labels:
        labels = _rows(_named(arrays, source.labels, source.file), subset, source).astype(np.int64)
        lengths[source.labels] = len(labels)
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ConfigError(f"--samples {source.file}: expected arrays of equal length, at least 1, got {lengths}")
    return inputs, labels, ranks == {0}


def _check_item(array: Array, tensor: TensorSpec, file: str) -> None:
    """Refuse rows whose shape is not that of the input, where it has one."""
    item = array.shape[1:]
    expected = tensor.shape[len(tensor.shape) - len(item) :]
    if any(size not in (VARIABLE, given) for size, given in zip(expected, item, strict=True)):
        raise ConfigError(
            f"--samples {file}: input {tensor.name}: expected rows of shape {list(expected)}, got {list(item)}"
        )


def open_npz(file: str, option: str) -> dict[str, Array]:
    """The arrays of an .npz file, which an option names; raises `ConfigError` when it cannot be read."""
    other = f", or {RANDOM}" if option == "--samples" else ""
    try:
        with Path(file).open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise ConfigError(f"{option} {file}: expected an .npz file, as numpy.savez writes it{other}")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                return dict(archive)
    except OSError as error:
        raise ConfigError(f"{option} {file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{option} {file}: cannot be read as an .npz file: {error}") from error


def _named(arrays: dict[str, Array], key: str, file: str) -> Array:
    if key not in arrays:
        raise ConfigError(f"--samples {file}: no array {key!r}; it has {', '.join(sorted(arrays))}")
    return arrays[key]


def _rows(array: Array, subset: Array | None, source: SampleSource) -> Array:
    if not array.ndim:
        raise ConfigError(f"--samples {source.file}: expected arrays of at least one dimension, got a single number")
    if subset is None:
        return array
    if (
        subset.ndim != 1
        or subset.dtype.kind not in "iu"
        or (subset.size and not 0 <= subset.min() <= subset.max() < len(array))
    ):
        raise ConfigError(f"--subset {source.subset}: expected row numbers from 0 to {len(array) - 1}")
    return np.asarray(array[subset])


def _cast(array: Array, tensor: TensorSpec, file: str) -> Array:
    wanted = numpy_dtype(tensor.datatype)
    text = array.dtype.kind in "SU"
    if text != (tensor.datatype is DataType.BYTES) or not (text or np.can_cast(array.dtype, wanted, "same_kind")):
        raise ConfigError(f"--samples {file}: input {tensor.name}: expected {tensor.datatype}, got {array.dtype}")
    return np.ascontiguousarray(array if text else array.astype(wanted))


def _random_inputs(metadata: TargetModel, rows_per_query: int, seed: int) -> dict[str, Array]:
    rng = generator(seed, "data")
    inputs: dict[str, Array] = {}
    for tensor in metadata.inputs:
        batched = tensor.shape[:1] == (VARIABLE,)
        item = tensor.shape[1:] if batched else tensor.shape
        if VARIABLE in item:
            raise ConfigError(f"input {tensor.name}: variable shape {list(item)}; expected --samples FILE.npz")
        shape = (_RANDOM_SAMPLES * (rows_per_query if batched else 1), *item)
        inputs[tensor.name] = _random_array(tensor.datatype, shape, rng)
    return inputs


def _random_array(datatype: DataType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if datatype is DataType.BYTES:
        return rng.integers(10**7, 10**8, size=shape).astype(f"S{_RANDOM_TEXT_BYTES}")
    dtype = numpy_dtype(datatype)
    # 0 and 1 are valid as pixels, counts and indices alike.
    return rng.random(shape).astype(dtype) if dtype.kind == "f" else rng.integers(2, size=shape).astype(dtype)
