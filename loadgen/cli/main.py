"""The command `loadgen`."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from sluice.loadgen.cli import find_max, paper, run, validate_sim
from sluice.loadgen.cli.options import EPILOG, INVALID, UNREACHABLE, USAGE
from sluice.loadgen.target.base import TargetUnreachable
from sluice.models.errors import ServingError

_COMMANDS = (run, find_max, validate_sim, paper)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    if sys.platform != "linux":
        print("loadgen: runs on Linux only (it paces with timerfd)", file=sys.stderr)
        return USAGE
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except TargetUnreachable as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return UNREACHABLE
    except (ServingError, OSError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return INVALID
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with the status for wrong usage; argparse's own would mean a missed objective here."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        prog="loadgen",
        description="Open-loop load: queries leave on schedule, and latency counts from the scheduled time.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
