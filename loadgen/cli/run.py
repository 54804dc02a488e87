"""The command `loadgen run`: one run."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.conf_options import add_conf_options
from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, warn, write_report
from sluice.loadgen.cli.progress import progress_line
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.mlperf.logs import write_mlperf_logs
from sluice.loadgen.mlperf.run_as_logged import check_loggable, is_loggable, keeping_outputs
from sluice.loadgen.reports.document import run_json
from sluice.loadgen.reports.text import run_text
from sluice.loadgen.results.folder import check_folder, write_result
from sluice.loadgen.run.runner import run


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("run", help="run a scenario once", epilog=EPILOG)
    parser.set_defaults(run=_run)
    add_run_options(parser)
    add_scenario_options(parser)
    add_conf_options(parser)
    out = "also write a folder with the result: JSON, queries, series, histogram, Markdown and a page of HTML"
    add = parser.group("report").add_argument
    add("--out", type=Path, metavar="DIR", help=out)
    logs = "also write mlperf_log_summary.txt, …_detail.txt and …_accuracy.json, as MLPerf's LoadGen does"
    add("--mlperf-logs", type=Path, metavar="DIR", help=logs)


def _run(options: argparse.Namespace) -> int:
    if options.out is not None:
        check_folder(options.out)
    config = msgspec.structs.replace(run_config(options, options.rate), **scenario_settings(options))
    if options.mlperf_logs is not None:
        check_loggable(config)
    logged = is_loggable(config) and not (options.out is None and options.mlperf_logs is None)
    # Several processes do not keep outputs; only who asks for the logs by name has to hear that.
    if logged and (config.procs == 1 or options.mlperf_logs is not None):
        config = keeping_outputs(config, options.kept_outputs)
    with progress_line() as watch:
        result = run(config, watch)
    warn(result)
    print(run_text(result), end="")
    write_report(options.json, run_json(result))
    if options.mlperf_logs is not None:
        write_mlperf_logs(result, options.mlperf_logs)
    if options.out is not None:
        write_result(result, options.out, also=(write_mlperf_logs,) if logged else ())
    if result.invalid:
        return INVALID
    return MET if result.slo_met else MISSED
