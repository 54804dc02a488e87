"""The options of a run's target."""

import argparse

from sluice.loadgen.target.base import MAX_OUTSTANDING
from sluice.models.command_line import add_connection_options


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where a run's queries go."""
    add = parser.add_argument
    add("--target", required=True, help="http://, https://, grpc:// or grpcs:// and host:port, or sim:FILE.yaml")
    add_connection_options(parser)
    add("--model", required=True, help="name of a model or pipeline")
    add("--path", default="", metavar="PATH", help="for a target that does not speak V2: post --bodies to this path")
    bodies = "for --path: a file, or a folder with a file a sample; sent as they are, with the headers of --header"
    add("--bodies", default="", metavar="FILE", help=bodies)
    add("--connections", type=int, default=256, metavar="N", help="most HTTP connections (default 256)")
    bound = f"most queries waiting and in flight; the next is dropped (default {MAX_OUTSTANDING})"
    add("--max-outstanding", type=int, default=MAX_OUTSTANDING, metavar="N", help=bound)
