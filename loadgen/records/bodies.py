"""Samples that are bodies of HTTP requests, each in a file, for targets that do not speak V2."""

from pathlib import Path

import numpy as np

from sluice.loadgen.records.samples import Samples
from sluice.models.errors import ConfigError
from sluice.models.tensors.spec import DataType, TensorSpec

BODY = TensorSpec("body", DataType.BYTES, (1,))
"""The input under which a sample has its body."""


def read_bodies(place: str) -> Samples:
    """Read a file, or the files of a folder in the order of their names; raises `ConfigError` where there is none."""
    path = Path(place)
    try:
        files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        contents = [file.read_bytes() for file in files]
    except OSError as error:
        raise ConfigError(f"--bodies {place}: cannot be read: {error.strerror or error}") from error
    if not contents:
        raise ConfigError(f"--bodies {place}: expected a file, or a folder with one file a body; it has none")
    bodies = np.empty(len(contents), np.object_)
    bodies[:] = contents
    return Samples({BODY.name: bodies}, labels=None, rows_per_query=1, batched=True)
