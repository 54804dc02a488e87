"""Results at a path: the folder of one run, or the JSON report of a run or of a search."""

import dataclasses
import typing
import zipfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sluice.loadgen.records.record import Record
from sluice.loadgen.reports.document import RUN, SCHEMA_VERSION
from sluice.loadgen.results.folder import COLUMNS, DOCUMENT, RECORD
from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError

_LISTS = ("probes", "runs")
"""Keys under which reports have those of several runs."""
_KEYS = {"schedule_digest": "schedule_sha256"}
"""Keys of the JSON report where they differ from the names of the result's fields."""


def read_results(path: Path) -> list[RunResult]:
    """The results at a path, at least one; those of a JSON report have no queries.

    Raises `ConfigError` for anything but a result.
    """
    if path.is_dir():
        return [read_result(path)]
    document = _document(path, f"{path}: expected a folder or the JSON of a result")
    for key in _LISTS:
        if isinstance(several := document.get(key), list) and several:
            return [_result_of(each, f"{path}: {key}[{i}]") for i, each in enumerate(several)]
    return [_result_of(document, str(path))]


def read_result(folder: Path) -> RunResult:
    """The result that `write_result` wrote to a folder; raises `ConfigError` with the file and the reason otherwise."""
    file = folder / DOCUMENT
    document = _document(file, f"{folder}: expected the folder of a result: {DOCUMENT}")
    return _read_columns(_result_of(document, str(file)), folder / COLUMNS)


def _document(file: Path, missing: str) -> dict[str, Any]:
    """The JSON object in a file; `missing` is said before the reason where it cannot be read."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{missing}: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: not the JSON of a result: {error}") from error


def _result_of(document: dict[str, Any], source: str) -> RunResult:
    """The result in a decoded JSON report of a run, without its queries.

    Raises `ConfigError`, which names `source`, for anything else.
    """
    if document.get("kind") != RUN:
        raise ConfigError(f"{source}: expected the report of a run, got kind {document.get('kind')!r}")
    if document.get("schema_version") != SCHEMA_VERSION:
        found = document.get("schema_version")
        raise ConfigError(f"{source}: expected schema version {SCHEMA_VERSION}, got {found!r}")
    hints = typing.get_type_hints(RunResult)
    values: dict[str, Any] = {"record": Record.empty(document.get("failures") or {})}
    try:
        values["invalid"] = list(document["validity"]["reasons"])
        for field in dataclasses.fields(RunResult):
            key = _KEYS.get(field.name, field.name)
            if field.name not in values and key in document:
                values[field.name] = msgspec.convert(document[key], hints[field.name])
        return RunResult(**values)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise ConfigError(f"{source}: not the report of a run: {error}") from error


def _read_columns(result: RunResult, file: Path) -> RunResult:
    try:
        with np.load(file, allow_pickle=False) as archive:
            columns = dict(archive)
        record = Record(**{name: columns[name] for name in RECORD}, answers=[], reasons=result.record.reasons)
        record.stages = {
            query: text.decode()
            for query, text in zip(columns["stages_query"].tolist(), columns["stages_text"].tolist(), strict=True)
        }
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{file}: not the queries of a run: {error}") from error
    lengths = {name: len(columns[name]) for name in RECORD}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"{file}: expected columns of one length, got {lengths}")
    return dataclasses.replace(
        result, record=record, predictions=columns.get("predictions"), expected=columns.get("expected")
    )
