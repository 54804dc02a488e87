"""The command `loadgen paper`: replays experiments of papers in virtual time."""

import argparse
from typing import Any

from sluice.loadgen.papers.experiment import find_experiments


def add_command(commands: Any) -> None:
    """Add the command, with a subcommand for each experiment, to the subparsers of `loadgen`."""
    parser = commands.add_parser("paper", help="replay experiments of papers in virtual time")
    subcommands = parser.add_subparsers(required=True, metavar="EXPERIMENT")
    for experiment in find_experiments():
        subcommand = subcommands.add_parser(experiment.name, help=experiment.summary, description=experiment.summary)
        subcommand.set_defaults(run=_run, experiment=experiment)


def _run(options: argparse.Namespace) -> int:
    print(options.experiment.table(), end="")
    return 0
