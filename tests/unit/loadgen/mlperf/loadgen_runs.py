"""Runs of MLPerf's own LoadGen, in a child process, and what its trace tells of their samples."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM, LoggedRun, LoggedSettings
from tests.support.loadgen.real_loadgen import observe_into

SAMPLES = 128
_TRACED = re.compile(
    r'"name":"Sample".*"ph":"b".*"ts":([\d.]+),.*"sample_seq":(\d+),.*"sample_idx":(\d+),.*"complete_ns":(-?\d+)'
)


def run_loadgen(scenario: str, mode: str, folder: Path, settings: dict[str, object]) -> None:
    """Run LoadGen into a new folder."""
    folder.mkdir()
    observe_into(folder, scenario, mode, SAMPLES, SAMPLES, **settings)


def retold(folder: Path, scenario: str, settings: LoggedSettings, loaded: Sequence[Sequence[int]]) -> LoggedRun:
    """The run whose trace is in a folder, to be logged again by Sluice."""
    trace = (folder / "mlperf_log_trace.json").read_text()
    found = [match for line in trace.splitlines() if (match := _TRACED.search(line))]
    rows = np.array([[round(float(ts) * 1000), int(number), int(sample), int(took)] for ts, number, sample, took in
                     (match.groups() for match in found)], np.int64)  # fmt: skip
    rows = rows[np.argsort(rows[:, 1])]
    start_ns = rows[:, 0] - rows[0, 0]
    group = {SERVER: 1, SINGLE_STREAM: 1, MULTI_STREAM: settings.samples_per_query, OFFLINE: len(rows)}[scenario]
    return LoggedRun(
        system="PySUT",
        data_set="PyQSL",
        scenario=scenario,
        accuracy_mode=False,
        settings=settings,
        loaded=loaded,
        samples=rows[:, 2],
        start_ns=start_ns,
        done_ns=start_ns + rows[:, 3],
        answered=np.ones(len(rows), np.bool_),
        group=group,
        began_s=0.0,
    )
