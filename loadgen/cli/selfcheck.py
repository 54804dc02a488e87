"""The command `loadgen selfcheck`: the rates at which this machine's client can be trusted."""

import argparse
import sys
from typing import Any

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, report_file, write_report
from sluice.mps.partitions.cpu import available_cores

_PROTOCOLS = ("http", "grpc")


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("selfcheck", help="find the rates that this client keeps on time here", epilog=EPILOG)
    parser.set_defaults(run=_selfcheck)
    add = parser.add_argument
    add("--protocol", choices=(*_PROTOCOLS, "both"), default="both", help="protocol to check (default both)")
    add("--quick", action="store_true", help="about 5 s in all instead of 30")
    add("--json", type=report_file, metavar="FILE", help="also write the report as JSON")


def _selfcheck(options: argparse.Namespace) -> int:
    from sluice.loadgen.selfcheck.report import selfcheck_json, selfcheck_text
    from sluice.loadgen.selfcheck.selfcheck import QUICK, THOROUGH, selfcheck

    protocols = _PROTOCOLS if options.protocol == "both" else (options.protocol,)
    progress = sys.stderr if sys.stderr.isatty() else None
    check = selfcheck(
        protocols,
        QUICK if options.quick else THOROUGH,
        len(available_cores()),
        lambda line: None if progress is None else print(line, file=progress, flush=True),
    )
    print(selfcheck_text(check), end="")
    write_report(options.json, selfcheck_json(check))
    return MET if check.is_fit else INVALID
