"""The command `loadgen`."""

import argparse
import os
import sys
from collections.abc import Sequence

from sluice.loadgen.cli import (
    accuracy,
    compare,
    compliance,
    find_max,
    mlperf,
    paper,
    report,
    run,
    schedule,
    selfcheck,
    sweep,
    trace,
    validate_sim,
)
from sluice.loadgen.cli.conf_options import conf_defaults
from sluice.loadgen.cli.options import EPILOG, INVALID, UNREACHABLE, USAGE
from sluice.loadgen.target.base import TargetUnreachable
from sluice.models.command_line import Parser
from sluice.models.errors import ServingError

OUTPUT_CLOSED = 141
"""Exit status when the reader of the output has closed it, as of a program that SIGPIPE ends."""
_COMMANDS = (
    run,
    find_max,
    sweep,
    compare,
    accuracy,
    report,
    trace,
    schedule,
    mlperf,
    compliance,
    selfcheck,
    validate_sim,
    paper,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    if sys.platform != "linux":
        print("loadgen: runs on Linux only (it paces with timerfd)", file=sys.stderr)
        return USAGE
    given = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parse(given)
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except TargetUnreachable as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return UNREACHABLE
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"loadgen: {place}{error.strerror or error}", file=sys.stderr)
        return USAGE
    except ServingError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return INVALID
    return status


def _parse(given: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, with defaults from the configuration files that it names."""
    options = build_parser().parse(given, os.environ)
    if defaults := conf_defaults(options):
        parser = build_parser()
        parser.command(given)[1].set_defaults(**defaults)
        options = parser.parse(given, os.environ)
    return options


class _Parser(Parser):
    usage_status = USAGE  # argparse's own would mean a missed objective here


def build_parser() -> Parser:
    """The parser of the command line."""
    parser = _Parser(
        prog="loadgen",
        description="Load for inference servers, open or closed loop; latency counts from the time a query is due.",
        epilog=EPILOG,
    )
    parser.plain = [(name,) for name in ("run", "find-max", "validate-sim")]
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
