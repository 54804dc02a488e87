"""The command `loadgen run`: one run."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, warn, write_report
from sluice.loadgen.cli.progress import progress_line
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.mlperf.logs import write_mlperf_logs
from sluice.loadgen.mlperf.run_as_logged import logged_config
from sluice.loadgen.reports.document import run_json
from sluice.loadgen.reports.text import run_text
from sluice.loadgen.run.runner import run


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("run", help="run a scenario once", epilog=EPILOG)
    parser.set_defaults(run=_run)
    add_run_options(parser)
    add_scenario_options(parser)
    logs = "also write mlperf_log_summary.txt, …_detail.txt and …_accuracy.json, as MLPerf's LoadGen does"
    parser.add_argument("--mlperf-logs", type=Path, metavar="DIR", help=logs)


def _run(options: argparse.Namespace) -> int:
    config = msgspec.structs.replace(run_config(options, options.rate), **scenario_settings(options))
    if options.mlperf_logs is not None:
        config = logged_config(config)
    with progress_line() as watch:
        result = run(config, watch)
    warn(result)
    print(run_text(result), end="")
    write_report(options.json, run_json(result))
    if options.mlperf_logs is not None:
        write_mlperf_logs(result, options.mlperf_logs)
    if result.invalid:
        return INVALID
    return MET if result.slo_met else MISSED
