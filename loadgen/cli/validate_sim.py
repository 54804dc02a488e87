"""The command `loadgen validate-sim`: calibrates a simulation and compares it with the live server."""

import argparse
import sys
from pathlib import Path
from typing import Any

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, write_report
from sluice.loadgen.simulation.target import SIMULATED
from sluice.loadgen.validation.comparison import comparison_json, comparison_table
from sluice.loadgen.validation.validate import Validation, validate
from sluice.models.command_line import quantity
from sluice.models.errors import ConfigError
from sluice.mps.partitions.cpu import available_cores


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("validate-sim", help="compare the simulator with a live server", epilog=EPILOG)
    parser.set_defaults(run=_validate_sim, queries=None, each_once=False)
    add = parser.add_argument
    add("--loads", type=_numbers, default=[20, 40, 60, 80, 120], metavar="%,%", help="of capacity (20,40,60,80,120)")
    add("--capacity", type=float, metavar="RATE", help="queries a second that are 100 %% (default: measured)")
    add("--seeds", type=int, default=5, metavar="N", help="pairs of runs a load, from --seed on (default 5)")
    add("--duration", type=quantity("_s"), default=6.0, metavar="S", help="seconds of every run (default 6)")
    add("--cores", type=_numbers, default=[], metavar="N,N", help="cores: gateway and client first, partitions last")
    add("--write", metavar="FILE", help="calibrated simulation (default: beside the file, as .calibrated.yaml)")
    add_run_options(parser)


def _validate_sim(options: argparse.Namespace) -> int:
    if not options.target.startswith(SIMULATED):
        raise ConfigError(f"--target: expected sim:FILE.yaml, which describes the live server, got {options.target}")
    if not options.loads or min(options.loads) <= 0:
        raise ConfigError(f"--loads: expected percentages above 0, got {options.loads}")
    if options.seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {options.seeds}")
    if not options.duration > options.warmup:
        raise ConfigError(f"--duration: expected more than --warmup ({options.warmup:g} s), got {options.duration:g} s")
    simulation = Path(options.target.removeprefix(SIMULATED))
    validation = Validation(
        run=run_config(options, rate=1.0),
        simulation=simulation,
        loads=tuple(load / 100 for load in options.loads),
        seeds=options.seeds,
        cores=tuple(options.cores) or available_cores(),
        capacity=options.capacity,
    )
    write = simulation.with_suffix(".calibrated.yaml") if options.write is None else Path(options.write)
    capacity, loads = validate(validation, write, lambda line: print(line, file=sys.stderr, flush=True))
    print(comparison_table(loads), end="")
    write_report(options.json, comparison_json(capacity, loads))
    if any(load.limits for load in loads):
        return INVALID
    return MET if all(figure.within for load in loads for figure in load.figures) else MISSED


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
