"""The command `loadgen run`: one run of the Server scenario."""

import argparse
from pathlib import Path
from typing import Any

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, warn, write_report
from sluice.loadgen.reports.document import run_json
from sluice.loadgen.reports.text import run_text
from sluice.loadgen.results.folder import check_folder, write_result
from sluice.loadgen.run.runner import run
from sluice.models.command_line import quantity


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("run", help="run the Server scenario once", epilog=EPILOG)
    parser.set_defaults(run=_run)
    parser.add_argument("--rate", type=float, required=True, help="mean arrivals a second")
    parser.add_argument("--duration", type=quantity("_s"), metavar="S", help="seconds of arrivals")
    parser.add_argument("--queries", type=int, metavar="N", help="arrivals; with --duration whichever comes first")
    add_run_options(parser)
    out = "also write a folder with the result: JSON, queries, series, histogram, Markdown and a page of HTML"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    parser.add_argument("--each-once", action="store_true", help="send every sample once, in random order")


def _run(options: argparse.Namespace) -> int:
    if options.out is not None:
        check_folder(options.out)
    result = run(run_config(options, options.rate))
    warn(result)
    print(run_text(result), end="")
    write_report(options.json, run_json(result))
    if options.out is not None:
        write_result(result, options.out)
    if result.invalid:
        return INVALID
    return MET if result.slo_met else MISSED
