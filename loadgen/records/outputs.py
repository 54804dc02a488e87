"""Outputs of answers that a run keeps: which, and how they are compared with others."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.samples import open_npz
from sluice.loadgen.traffic.mersenne import Mersenne
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import Array

Outputs = Mapping[int, Mapping[str, Array]]
"""Outputs by the number of the query, and by name."""

_SEQUENCE_SEED = 5489
"""The seed of a C++ engine that was given none, as LoadGen's is that draws one number for each sample."""


class KeptOutputs(msgspec.Struct, frozen=True):
    """The outputs that a run keeps: of a `share` of the answers, as LoadGen chooses them with `seed`.

    `names` are those of the outputs; without any it is the one output that is compared with labels.
    """

    share: float = 1.0
    seed: int = 0
    names: tuple[str, ...] = ()

    def queries(self, count: int) -> frozenset[int]:
        """The numbers, of those below `count`, of the queries whose answers are kept.

        LoadGen draws a number of [0, 1) for each sample from an engine that is always the same, shifts it by one that
        it draws from the seed, and logs the answers where it is at most the share.
        """
        shifted = (Mersenne(_SEQUENCE_SEED).uniform(count) + Mersenne(self.seed).uniform(1)) % 1.0
        return frozenset(np.flatnonzero(shifted <= self.share).tolist())


class ExpectedOutputs:
    """The outputs that a model is expected to give, read from the arrays of an .npz file by output name.

    The first dimension of each array counts the rows of the samples. Numbers agree within `tolerance`, relative or
    absolute, and NaN agrees with NaN; texts agree where they are equal. Raises `ConfigError` for a file that cannot be
    read, and for arrays of unequal length.
    """

    def __init__(self, file: str, tolerance: float) -> None:
        self._file = file
        self._arrays = open_npz(file, "--expected")
        self._tolerance = tolerance
        lengths = {name: len(array) if array.ndim else 0 for name, array in self._arrays.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ConfigError(f"--expected {file}: expected arrays of equal length, at least 1, got {lengths}")
        self.rows = next(iter(lengths.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs that are compared."""
        return tuple(self._arrays)

    def right_rows(self, outputs: Mapping[str, Array], rows: slice) -> int:
        """The number of rows, of those from `rows` of the samples, in which all outputs are as expected."""
        right = np.ones(len(range(self.rows)[rows]), np.bool_)
        for name, array in self._arrays.items():
            wanted, found = array[rows], outputs[name]
            # The outputs of a model without batches have no dimension for rows.
            found = found[np.newaxis] if found.ndim == wanted.ndim - 1 else found
            if found.shape != wanted.shape:
                raise ConfigError(
                    f"--expected {self._file}: {name}: the answers have shape {found.shape}, got {wanted.shape}"
                )
            right &= self._equal(found, wanted).reshape(len(wanted), -1).all(axis=1)
        return int(right.sum())

    def _equal(self, found: Array, wanted: Array) -> npt.NDArray[np.bool_]:
        if wanted.dtype.kind in "SUO" or found.dtype.kind in "SUO":
            return np.asarray(found.astype(np.bytes_) == wanted.astype(np.bytes_), np.bool_)
        return np.asarray(np.isclose(found, wanted, self._tolerance, self._tolerance, equal_nan=True), np.bool_)
