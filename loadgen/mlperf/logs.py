"""The log files of a run in the format of MLPerf's LoadGen."""

from pathlib import Path

from sluice.loadgen.mlperf.accuracy_log import accuracy_log
from sluice.loadgen.mlperf.detail_log import detail_lines, detail_log
from sluice.loadgen.mlperf.logged_run import LoggedRun
from sluice.loadgen.mlperf.outcome import outcome
from sluice.loadgen.mlperf.run_as_logged import check_loggable, run_as_logged
from sluice.loadgen.mlperf.summary_log import summary_log
from sluice.loadgen.run.result import RunResult

SUMMARY, DETAIL, ACCURACY = "mlperf_log_summary.txt", "mlperf_log_detail.txt", "mlperf_log_accuracy.json"


def write_mlperf_logs(result: RunResult, folder: Path) -> None:
    """Write the logs of a run into a folder, which is made if it does not exist; a run without a query has none.

    Raises `ConfigError` as `check_loggable` does.
    """
    check_loggable(result.config)
    run = run_as_logged(result)
    if len(run.samples):
        folder.mkdir(parents=True, exist_ok=True)
        write_logs(run, folder)


def write_logs(run: LoggedRun, folder: Path) -> None:
    """Write the three files into a folder that exists."""
    found = None if run.accuracy_mode else outcome(run)
    lines = detail_lines(run, found)
    errors, warnings = sum(line.error for line in lines), sum(line.warning for line in lines)
    (folder / SUMMARY).write_text(summary_log(run, found, errors, warnings))
    (folder / DETAIL).write_text(detail_log(lines))
    (folder / ACCURACY).write_text(accuracy_log(run.samples, run.answers))
