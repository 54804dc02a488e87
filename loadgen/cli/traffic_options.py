"""The options of a run's traffic."""

import argparse

import msgspec

from sluice.loadgen.traffic.arrivals import DEFAULT_CV, ArrivalProcess, Arrivals
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds
from sluice.models.errors import ConfigError


def add_traffic_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how queries are spread over time."""
    add = parser.add_argument
    processes = [process.value for process in ArrivalProcess]
    add("--arrivals", choices=processes, default="poisson", help="arrival process (default poisson)")
    add("--cv", type=float, help=f"for gamma: coefficient of variation of the gaps (default {DEFAULT_CV:g})")
    add("--trace", default="", metavar="FILE", help="for trace: CSV file of arrival times, scaled to the rate")
    seeds = "for mlperf: the three seeds of LoadGen (default: the official ones)"
    add("--mlperf-seeds", type=_seeds, metavar="QSL,SAMPLE,SCHEDULE", help=seeds)
    parser.set_defaults(mlperf_rules=MlperfRules())


def mlperf_rules(options: argparse.Namespace) -> MlperfRules:
    """The rules of LoadGen that the options describe."""
    rules: MlperfRules = options.mlperf_rules
    if options.mlperf_seeds is None:
        return rules
    if options.arrivals != ArrivalProcess.MLPERF:
        raise ConfigError(f"--mlperf-seeds: requires --arrivals mlperf, got --arrivals {options.arrivals}")
    return msgspec.structs.replace(rules, seeds=options.mlperf_seeds)


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


def _seeds(text: str) -> MlperfSeeds:
    try:
        seeds = [int(each) for each in text.split(",")]
    except ValueError:
        seeds = []
    if len(seeds) != 3 or not all(0 <= seed < 1 << 64 for seed in seeds):
        raise argparse.ArgumentTypeError(f"expected three numbers from 0 to 2**64 - 1, got {text!r}")
    return MlperfSeeds(*seeds)
