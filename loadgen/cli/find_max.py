"""The command `loadgen find-max`: the highest rate that meets the objective."""

import argparse
from typing import Any

import msgspec

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, warn, write_report
from sluice.loadgen.reports.document import max_rate_json
from sluice.loadgen.reports.text import max_rate_text, probe_text
from sluice.loadgen.run.find_max import MAX_PROBES, RATE_LIMIT, Probe, find_max
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.run.runner import run
from sluice.models.command_line import quantity


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("find-max", help="find the highest rate that meets the objective", epilog=EPILOG)
    # A fixed number of queries ends sooner than the objective at a high rate, and then proves nothing.
    parser.set_defaults(run=_find_max, queries=None, each_once=False)
    add = parser.add_argument
    add("--start", type=float, default=100.0, help="rate of the first probe (default %(default)s)")
    add("--precision", type=float, default=2.0, help="width of the last bracket in %% (default 2)")
    add("--max-rate", type=float, default=RATE_LIMIT, help="highest rate to try (default %(default)g)")
    add("--max-probes", type=int, default=MAX_PROBES, help="most runs to make (default %(default)s)")
    add("--duration", type=quantity("_s"), default=10.0, metavar="S", help="seconds of every run (default 10)")
    add_run_options(parser)


def _find_max(options: argparse.Namespace) -> int:
    def probe(rate: float, number: int) -> RunResult:
        result = run(msgspec.structs.replace(run_config(options, rate), seed=options.seed + number))
        if number == 0:
            warn(result)
        return result

    def report(probe: Probe) -> None:
        print(probe_text(probe), end="", flush=True)

    found = find_max(probe, options.start, options.precision / 100, options.max_probes, options.max_rate, report)
    print(max_rate_text(found), end="")
    write_report(options.json, max_rate_json(found))
    if found.client_limited or found.too_short or found.probes[-1].result.interrupted:
        return INVALID
    return MISSED if found.rate is None else MET
