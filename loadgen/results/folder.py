"""The folder of a run's result, written at once."""

import csv
import dataclasses
import io
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.time_series import TimeSeries
from sluice.loadgen.reports.document import run_json
from sluice.loadgen.reports.html import run_page
from sluice.loadgen.reports.markdown import run_markdown
from sluice.loadgen.results.files import check_parent
from sluice.loadgen.results.hdr import latency_log
from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError

DOCUMENT, COLUMNS, SERIES, HISTOGRAM = "result.json", "requests.npz", "timeseries.csv", "latency.hdr"
MARKDOWN, PAGE = "report.md", "report.html"
_FILES = frozenset({DOCUMENT, COLUMNS, SERIES, HISTOGRAM, MARKDOWN, PAGE})
_MLPERF = "mlperf_log_"
RECORD = ("due_ns", "sample", "stream", "slo_ns", "queued_ns", "sent_ns", "done_ns", "status")
"""The columns of the record that a folder holds."""

Writer = Callable[[RunResult, Path], None]


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` unless a result can be written to a folder: it is new, empty, or that of a result.

    A new folder needs one above it that can be written to.
    """
    if not folder.exists():
        check_parent(folder)
        return
    if not folder.is_dir():
        raise ConfigError(f"--out {folder}: expected a folder, found a file")
    names = sorted(file.name for file in folder.iterdir())
    others = [name for name in names if name not in _FILES and not name.startswith(_MLPERF)]
    if others:
        raise ConfigError(f"--out {folder}: expected a new or empty folder, or one of a result; it has {others[0]}")


def write_result(result: RunResult, folder: Path, also: Sequence[Writer] = ()) -> None:
    """Write a result to a folder, which replaces one of an earlier result; `also` write further files.

    All files are written beside the folder first, so that it is there as a whole or not at all. Raises `ConfigError`
    as `check_folder` does, and where the files cannot be written.
    """
    check_folder(folder)
    try:
        _write(result, folder.resolve(), also)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be written: {error.strerror or error}") from error


def series_csv(series: TimeSeries) -> str:
    """A time series as CSV, a line for each second; a percentile without answers is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("second", *(field.name for field in dataclasses.fields(series))))
    for second in range(len(series)):
        row = [getattr(series, field.name)[second].item() for field in dataclasses.fields(series)]
        writer.writerow((second, *("" if isinstance(x, float) and math.isnan(x) else x for x in row)))
    return text.getvalue()


def _write(result: RunResult, folder: Path, also: Sequence[Writer]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        fresh, old = Path(name, "new"), Path(name, "old")
        fresh.mkdir()
        _write_columns(result, fresh / COLUMNS)
        (fresh / DOCUMENT).write_bytes(run_json(result))
        (fresh / SERIES).write_text(series_csv(result.figures.series))
        streams = [stream.name for stream in result.streams]
        (fresh / HISTOGRAM).write_text(latency_log(result.record, result.config.warmup_s, streams))
        (fresh / MARKDOWN).write_text(run_markdown(result))
        (fresh / PAGE).write_text(run_page([result]))
        for write in also:
            write(result, fresh)
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)
        shutil.rmtree(old, ignore_errors=True)


def _write_columns(result: RunResult, file: Path) -> None:
    record = result.record
    columns: dict[str, npt.NDArray[np.generic]] = {name: getattr(record, name) for name in RECORD}
    columns["stages_query"] = np.fromiter(record.stages, np.int64, len(record.stages))
    columns["stages_text"] = np.array([text.encode() for text in record.stages.values()], np.bytes_)
    if result.predictions is not None and result.expected is not None:
        columns |= {"predictions": result.predictions, "expected": result.expected}
    np.savez_compressed(file, allow_pickle=False, **columns)
