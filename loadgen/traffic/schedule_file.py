"""Schedule files: the columns of a schedule as an .npz archive or as CSV."""

import csv
import zipfile
import zlib
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.processes.bounds import MAX_QUERIES
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.traces.text_rows import CsvTable, TextRows, open_text
from sluice.models.errors import ConfigError

_COLUMNS = ("due_ns", "sample", "stream", "cancel_ns")
_MOST_STREAMS = 1 << 16
_END_NS = 1 << 62


def write_schedule(schedule: Schedule, path: str) -> None:
    """Write a schedule to a file whose name ends in .npz or .csv; raises `ConfigError` when that fails."""
    columns = {"due_ns": schedule.due_ns, "sample": schedule.sample}
    if schedule.stream.any():
        columns["stream"] = schedule.stream.astype(np.int64)
    if schedule.cancel_ns is not None:
        columns["cancel_ns"] = schedule.cancel_ns
    try:
        if _is_archive(path):
            np.savez(path, allow_pickle=False, **columns)
            return
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_schedule(path: str) -> Schedule:
    """Read a schedule of at most 20 million queries; raises `ConfigError` with what was expected."""
    columns = _read_archive(path) if _is_archive(path) else _read_csv(path)
    due_ns, sample = columns["due_ns"], columns["sample"]
    stream, cancel_ns = columns.get("stream"), columns.get("cancel_ns")
    if not len(due_ns):
        raise ConfigError(f"--schedule {path}: no queries; expected at least one")
    if due_ns[0] < 0 or due_ns[-1] > _END_NS or (np.diff(due_ns) < 0).any():
        raise ConfigError(f"--schedule {path}: expected due_ns that start at 0 or later and do not fall")
    if sample.min() < 0:
        raise ConfigError(f"--schedule {path}: expected samples of at least 0, got {sample.min()}")
    if stream is not None and not 0 <= stream.min() <= stream.max() < _MOST_STREAMS:
        raise ConfigError(f"--schedule {path}: expected streams from 0 to {_MOST_STREAMS - 1}")
    if cancel_ns is not None and not -1 <= cancel_ns.min() <= cancel_ns.max() <= _END_NS:
        raise ConfigError(f"--schedule {path}: expected cancel_ns of at least -1")
    return Schedule(due_ns, sample, np.empty(0, np.uint16) if stream is None else stream.astype(np.uint16), cancel_ns)


def _is_archive(path: str) -> bool:
    if not path.endswith((".npz", ".csv")):
        raise ConfigError(f"--schedule {path}: expected a name that ends in .npz or .csv")
    return path.endswith(".npz")


def _read_archive(path: str) -> dict[str, npt.NDArray[np.int64]]:
    try:
        with zipfile.ZipFile(path) as archive:
            largest = max((each.file_size for each in archive.infolist()), default=0)
        if largest > MAX_QUERIES * 8 + 1024:
            raise ConfigError(f"--schedule {path}: too long; expected at most {MAX_QUERIES} queries")
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise ConfigError(f"--schedule {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"--schedule {path}: cannot be read as an .npz file: {error}") from error
    shapes = {column.shape for column in columns.values()}
    kinds = {column.dtype for column in columns.values()}
    if not {"due_ns", "sample"} <= columns.keys() <= set(_COLUMNS) or len(shapes) != 1 or kinds != {np.dtype(np.int64)}:
        found = ", ".join(f"{name} {each.dtype}{list(each.shape)}" for name, each in columns.items())
        raise ConfigError(
            f"--schedule {path}: expected int64 arrays {', '.join(_COLUMNS[:2])} and maybe {', '.join(_COLUMNS[2:])}, "
            f"of one length; got {found or 'none'}"
        )
    if len(next(iter(shapes))) != 1:
        raise ConfigError(f"--schedule {path}: expected arrays of one dimension")
    return columns


def _read_csv(path: str) -> dict[str, npt.NDArray[np.int64]]:
    with open_text(path) as file:
        rows = TextRows(file, path)
        table = CsvTable(rows, _COLUMNS[:2])
        if set(table.heading) - set(_COLUMNS) or len(set(table.heading)) != len(table.heading):
            raise rows.error(
                f"the columns {', '.join(_COLUMNS)}, each at most once", repr(",".join(table.heading)[:80])
            )
        columns: dict[str, array[int]] = {name: array("q") for name in table.heading}
        for row in table:
            if len(columns["due_ns"]) == MAX_QUERIES:
                raise ConfigError(f"--schedule {path}: too long; expected at most {MAX_QUERIES} queries")
            for name, column in columns.items():
                column.append(row.whole(name))
    return {name: np.array(column, np.int64) for name, column in columns.items()}
