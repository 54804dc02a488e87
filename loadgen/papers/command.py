"""The command `loadgen paper`: prints what experiments of papers give when they are played again."""

import argparse
from collections.abc import Callable
from typing import Any

from sluice.loadgen.papers import elastic_share, memory_packing, mixed_packing


def _packing() -> str:
    return memory_packing.table(list(memory_packing.cases()))


def _mixed_packing() -> str:
    return mixed_packing.table(mixed_packing.cases())


def _shares() -> str:
    return elastic_share.table(elastic_share.cases())


EXPERIMENTS: dict[str, tuple[Callable[[], str], str]] = {
    "packing": (_packing, "thirty engines on one GPU by every packing policy (Ferikoglou et al., 2021)"),
    "mixed-packing": (_mixed_packing, "twenty-five engines of six kinds, as on the slides of that paper"),
    "shares": (_shares, "two jobs at 0.1 and 0.9 of a GPU, capped, elastic and uncapped (KNIX, 2021)"),
}


def add_paper_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("paper", help="play experiments of papers again, in virtual time")
    experiments = parser.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    for name, (_, text) in EXPERIMENTS.items():
        experiments.add_parser(name, help=text, description=text)


def run_paper(options: argparse.Namespace) -> int:
    """Print the table of an experiment; returns the exit code."""
    experiment, _ = EXPERIMENTS[options.experiment]
    print(experiment(), end="")
    return 0
