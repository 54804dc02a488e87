"""The command `loadgen sweep`: runs over a grid of loads, objectives and policies."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.options import (
    EPILOG,
    INVALID,
    MET,
    add_run_options,
    report_file,
    run_config,
    warn,
    write_report,
)
from sluice.loadgen.cli.traffic_options import with_slo_scale
from sluice.loadgen.reports.document import run_json
from sluice.loadgen.reports.sweep import sweep_csv, sweep_json, sweep_text
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.run.runner import run
from sluice.loadgen.run.sweep import MAX_RUNS, SweepGrid, SweepPoint, sweep
from sluice.models.command_line import quantity
from sluice.models.errors import ConfigError

_SEEDS = 3
_DURATION_S, _QUICK_DURATION_S = 10.0, 5.0


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser(
        "sweep",
        help="run over a grid of rates, concurrencies, objectives and policies",
        epilog="exit codes: 0 every run is valid, whatever its verdict; " + EPILOG.partition("objective met, ")[2],
    )
    parser.set_defaults(run=_sweep, queries=None, each_once=False)
    add = parser.group("grid").add_argument
    several = "numbers with commas, or FIRST:LAST:STEP"
    add("--rates", type=_numbers, default=(), metavar="R,R", help=f"mean arrivals a second: {several}")
    add("--concurrencies", type=_whole_numbers, default=(), metavar="N,N", help=f"queries open at a time: {several}")
    add("--slo-scales", type=_numbers, default=(1.0,), metavar="X,X", help="factors of the objective (default 1)")
    add("--policies", type=_files, default=("",), metavar="FILE,FILE", help="for sim: files of settings to replace")
    add("--seeds", type=int, metavar="N", help=f"runs at each point, from --seed on (default {_SEEDS})")
    add("--duration", type=quantity("_s"), metavar="S", help=f"seconds of every run (default {_DURATION_S:g})")
    quick = f"one seed, {_QUICK_DURATION_S:g} s, and a run ends once its verdict is known"
    add("--quick", action="store_true", help=quick)
    add_run_options(parser)
    parser.group("report").add_argument(
        "--csv", type=report_file, metavar="FILE", help="also write the data of the curves as CSV"
    )


def _sweep(options: argparse.Namespace) -> int:
    quick = options.quick
    seeds = options.seeds if options.seeds is not None else 1 if quick else _SEEDS
    options.duration = options.duration or (_QUICK_DURATION_S if quick else _DURATION_S)
    grid = SweepGrid(options.rates, options.concurrencies, options.slo_scales, options.policies)
    base = run_config(options, 0.0)
    if base.schedule_file:
        raise ConfigError("--schedule: has queries at one rate; expected --arrivals, whose rate a sweep can change")
    reports: list[bytes] = []
    noted: set[str] = set()

    def run_one(point: SweepPoint, number: int) -> RunResult:
        config = with_slo_scale(point.config(base), point.slo_scale)
        # A closed loop has no due times, at which a run could be looked at before its end.
        decide_from_s = 0.0 if quick and point.is_rate else None
        result = run(msgspec.structs.replace(config, seed=base.seed + number, decide_from_s=decide_from_s))
        if point.policy not in noted:
            noted.add(point.policy)
            warn(result)
        return result

    def report(point: SweepPoint, result: RunResult) -> None:
        reports.append(run_json(result))
        load = f"{point.load:g}/s" if point.is_rate else f"{point.load:g} open"
        name = f" with {point.policy}" if point.policy else ""
        reasons = f": {'; '.join(result.invalid)}" if result.invalid else ""
        line = f"{load} x {point.slo_scale:g}{name}, seed {result.config.seed}: {result.verdict}{reasons}"
        print(line, file=sys.stderr, flush=True)

    summaries = sweep(run_one, grid, seeds, report)
    print(sweep_text(summaries), end="")
    write_report(options.json, sweep_json(grid, summaries, reports))
    write_report(options.csv, sweep_csv(summaries).encode())
    return INVALID if any(summary.invalid for summary in summaries) else MET


def _numbers(text: str) -> tuple[float, ...]:
    """The numbers of a list, or from the first to the last by steps."""
    parts = text.split(":" if ":" in text else ",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not numbers or (":" in text and len(numbers) != 3):
        raise argparse.ArgumentTypeError(f"expected numbers with commas, or FIRST:LAST:STEP, got {text!r}")
    if ":" in text:
        first, last, step = numbers
        if not step > 0 or not 0 <= (last - first) / step < MAX_RUNS:
            raise argparse.ArgumentTypeError(f"expected FIRST:LAST:STEP upwards, got {text!r}")
        numbers = [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]
    if not all(0 < number < float("inf") for number in numbers):
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return tuple(numbers)


def _whole_numbers(text: str) -> tuple[int, ...]:
    numbers = _numbers(text)
    if not all(number.is_integer() for number in numbers):
        raise argparse.ArgumentTypeError(f"expected whole numbers, got {text!r}")
    return tuple(int(number) for number in numbers)


def _files(text: str) -> tuple[str, ...]:
    for file in text.split(","):
        if not Path(file).is_file():
            raise argparse.ArgumentTypeError(f"{file}: no such file")
    return tuple(text.split(","))
