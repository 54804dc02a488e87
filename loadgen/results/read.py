"""Results at a path: the folder of one run, or the JSON report of a run or of a search."""

from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.results.folder import read_result, result_of
from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError

_LISTS = ("probes", "runs")
"""Keys under which reports have those of several runs."""


def read_results(path: Path) -> list[RunResult]:
    """The results at a path, at least one; those of a JSON report have no queries.

    Raises `ConfigError` for anything but a result.
    """
    if path.is_dir():
        return [read_result(path)]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: expected a folder or the JSON of a result: {error.strerror}") from error
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not the JSON of a result: {error}") from error
    for key in _LISTS:
        if isinstance(several := document.get(key), list) and several:
            return [result_of(each, f"{path}: {key}[{i}]") for i, each in enumerate(several)]
    return [result_of(document, str(path))]
