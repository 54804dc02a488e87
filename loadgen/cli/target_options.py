"""The options of a run's target."""

import argparse

from sluice.loadgen.run.processes import MAX_PROCESSES, automatic_count
from sluice.loadgen.target.address import EXPECTED
from sluice.loadgen.target.base import MAX_OUTSTANDING
from sluice.models.command_line import Parser, add_connection_options


def add_target_options(parser: Parser, *, target: bool) -> None:
    """Add the options that say where a run's queries go; without `target`, the command names targets in its own way."""
    group = parser.group("target")
    add = group.add_argument
    if target:
        add("--target", required=True, help=f"the server: {EXPECTED}")
    else:
        parser.set_defaults(target="")
    add_connection_options(group)
    add("--model", default="", help="name of a model or pipeline; without it --mix, or a --trace that names models")
    add("--path", default="", metavar="PATH", help="for a target that does not speak V2: post --bodies to this path")
    bodies = "for --path: a file, or a folder with a file a sample; sent as they are, with the headers of --header"
    add("--bodies", default="", metavar="FILE", help=bodies)
    add("--connections", type=int, default=256, metavar="N", help="most HTTP connections (default 256)")
    bound = f"most queries waiting and in flight; the next is dropped (default {MAX_OUTSTANDING})"
    add("--max-outstanding", type=int, default=MAX_OUTSTANDING, metavar="N", help=bound)
    procs = "client processes that share the queries; auto leaves one core to the target (default 1)"
    add("--procs", type=_processes, default=1, metavar="N", help=procs)


def _processes(text: str) -> int:
    if text == "auto":
        return automatic_count()
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"expected auto or a number from 1 to {MAX_PROCESSES}, got {text!r}")
    return int(text)
