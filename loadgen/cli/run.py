"""The command `loadgen run`: one run."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.conf_options import add_conf_options
from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, warn, write_report
from sluice.loadgen.cli.progress import progress_line
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
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
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)


def _run(options: argparse.Namespace) -> int:
    if options.out is not None:
        check_folder(options.out)
    config = run_config(options, options.rate)
    with progress_line() as watch:
        result = run(msgspec.structs.replace(config, **scenario_settings(options)), watch)
    warn(result)
    print(run_text(result), end="")
    write_report(options.json, run_json(result))
    if options.out is not None:
        write_result(result, options.out)
    if result.invalid:
        return INVALID
    return MET if result.slo_met else MISSED
