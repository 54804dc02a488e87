"""Profiles as CSV: one line a cell, each with the keys of its entry (columns: docs/operate/profiles.md)."""

import csv
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.profiles.file import ModelProfile, ProfileEntry
from sluice.models.profiles.measurement import Cell

_ENTRY = (
    "fingerprint",
    "kind",
    "source",
    "sha256",
    "memory_rest_bytes",
    "memory_row_bytes",
    "load_ns",
    "warm_up_ns",
)
_CELL = ("batch", "p50_ns", "p90_ns", "p99_ns", "samples")
_SELDOM = ("no_memory_batch", "unenforced")
"""Columns of the entry that may be missing."""
COLUMNS = (*_ENTRY, *_CELL, *_SELDOM)

_BETWEEN = "; "
"""The separator of the reasons in `unenforced`."""

_PLACE = re.compile(r"(?P<what>.*) - at `\$\.(?P<column>\w+)`", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]{1,19}")


def write_csv(path: Path, profile: ModelProfile) -> None:
    """Write all entries; None is an empty field. Raises OSError."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for entry in profile.entries:
            own = [getattr(entry, column) for column in _ENTRY]
            seldom = [entry.no_memory_batch, _BETWEEN.join(entry.unenforced)]
            writer.writerows([*own, *(getattr(cell, column) for column in _CELL), *seldom] for cell in entry.cells)


def read_csv(path: Path) -> ModelProfile:
    """Read the output of `write_csv`, columns in any order; raises ConfigError, with the line and the column."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            header = tuple(reader.fieldnames or ())
            if sorted({*header, *_SELDOM}) != sorted(COLUMNS) or len(set(header)) < len(header):
                raise ConfigError(f"{path}: line 1: expected the columns {', '.join(COLUMNS)}")
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    entries = []
    of_entry = [column for column in header if column not in _CELL]
    for _, group in groupby(lines, key=lambda line: [line[1][column] for column in of_entry]):
        members = list(group)
        first_line, first = members[0]
        cells = [_convert({column: row[column] for column in _CELL}, Cell, path, line) for line, row in members]
        entries.append(
            _convert({column: first[column] for column in of_entry}, ProfileEntry, path, first_line, cells=cells)
        )
    try:
        return ModelProfile(entries=tuple(entries))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _convert(row: dict[str, str | None], form: type[Any], path: Path, line: int, **more: object) -> Any:
    """Convert a line's fields to a struct."""
    fields = {column: _value(column, text) for column, text in row.items()}
    try:
        return msgspec.convert({**fields, **more}, form)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        place = f"line {line}: {match['column']}: {match['what']}" if match else f"line {line}: {error}"
        raise ConfigError(f"{path}: {place}") from error


def _value(column: str, text: str | None) -> str | int | list[str] | None:
    if column == "unenforced":
        return text.split(_BETWEEN) if text else []
    if not text:
        return None
    number = column not in ("fingerprint", "kind", "source", "sha256") and _NUMBER.fullmatch(text)
    return int(text) if number else text
