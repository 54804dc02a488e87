"""The options of a run's target."""

import argparse

from sluice.loadgen.target.address import EXPECTED
from sluice.loadgen.target.base import MAX_OUTSTANDING
from sluice.models.command_line import add_connection_options


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where a run's queries go."""
    add = parser.add_argument
    add("--target", required=True, help=f"the server: {EXPECTED}")
    add_connection_options(parser)
    add("--model", required=True, help="name of a model or pipeline")
    add("--connections", type=int, default=256, metavar="N", help="most HTTP connections (default 256)")
    bound = f"most queries waiting and in flight; the next is dropped (default {MAX_OUTSTANDING})"
    add("--max-outstanding", type=int, default=MAX_OUTSTANDING, metavar="N", help=bound)
