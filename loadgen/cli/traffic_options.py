"""The options of a run's traffic."""

import argparse

from sluice.loadgen.traffic.arrivals import DEFAULT_CV, ArrivalProcess, Arrivals
from sluice.models.errors import ConfigError


def add_traffic_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how queries are spread over time."""
    add = parser.add_argument
    processes = [process.value for process in ArrivalProcess]
    add("--arrivals", choices=processes, default="poisson", help="arrival process (default poisson)")
    add("--cv", type=float, help=f"for gamma: coefficient of variation of the gaps (default {DEFAULT_CV:g})")
    add("--trace", default="", metavar="FILE", help="for trace: CSV file of arrival times, scaled to the rate")


def arrivals(options: argparse.Namespace) -> Arrivals:
    """The arrival process that the options describe."""
    process = ArrivalProcess(options.arrivals)
    if options.cv is not None and process is not ArrivalProcess.GAMMA:
        raise ConfigError(f"--cv: requires --arrivals gamma, got --arrivals {process}")
    if options.trace and process is not ArrivalProcess.TRACE:
        raise ConfigError(f"--trace: requires --arrivals trace, got --arrivals {process}")
    if process is ArrivalProcess.TRACE and not options.trace:
        raise ConfigError("--arrivals trace: requires --trace FILE")
    return Arrivals(process, DEFAULT_CV if options.cv is None else options.cv, options.trace)
