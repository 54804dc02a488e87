"""The command `loadgen compare`: two or three targets, or reports of their runs, side by side."""

import argparse
import string
import sys
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, REGRESSION, add_run_options, run_config, write_report
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.comparison.compared_run import ComparedRun, read_runs
from sluice.loadgen.comparison.contrast import MIN_PAIRS, ComparisonVerdict, compare
from sluice.loadgen.comparison.interleaved import run_interleaved
from sluice.loadgen.comparison.report import comparison_report, comparison_text, run_line
from sluice.loadgen.run.runner import plan_run, run
from sluice.loadgen.simulation.target import SIMULATED
from sluice.models.errors import ConfigError

_MOST = 3


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser(
        "compare",
        help="compare targets by paired runs, or by reports of runs",
        description="Compares B (and C) with A, by runs with the same arrivals and samples.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=_compare)
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="A B [C]",
        help="URLs of targets, which take turns; or JSON reports, result folders, or folders of them",
    )
    add("--seeds", type=int, default=5, metavar="N", help="runs of each target, from --seed on (default 5)")
    add("--threshold", type=float, default=5.0, metavar="%", help="least difference that counts, in %% (default 5)")
    add("--fail-on-regression", action="store_true", help="exit with 3 when a target is worse than A")
    add("--own-service-times", action="store_true", help="for sim: runs of a pair do not share their random times")
    add_run_options(parser, target=False)
    add_scenario_options(parser)


def _compare(options: argparse.Namespace) -> int:
    sides: list[str] = options.sides
    if not 2 <= len(sides) <= _MOST:
        raise ConfigError(f"compare: expected two or three targets or reports, got {len(sides)}")
    if not 0 < options.threshold < float("inf"):
        raise ConfigError(f"--threshold: expected a percentage above 0, got {options.threshold:g}")
    names = dict(zip(string.ascii_uppercase, sides, strict=False))
    live = any(map(_is_target, sides))
    first, *others = _play(options, names) if live else [read_runs(Path(side)) for side in sides]
    interrupted = live and len(first) < options.seeds
    if interrupted:
        print(f"loadgen: interrupted after {len(first)} of {options.seeds} seeds", file=sys.stderr)
        if len(first) < MIN_PAIRS:
            return INVALID
    threshold = options.threshold / 100
    comparisons = {label: compare(first, runs, threshold) for label, runs in zip(list(names)[1:], others, strict=True)}
    print(comparison_text(names, comparisons, threshold), end="")
    write_report(options.json, comparison_report(names, comparisons, threshold))
    if interrupted or any(comparison.limits for comparison in comparisons.values()):
        return INVALID
    worse = any(comparison.verdict is ComparisonVerdict.WORSE for comparison in comparisons.values())
    return REGRESSION if worse and options.fail_on_regression else MET


def _play(options: argparse.Namespace, names: dict[str, str]) -> list[list[ComparedRun]]:
    files = [side for side in names.values() if not _is_target(side)]
    if files:
        raise ConfigError(f"compare: {files[0]} is no target; expected targets only, or reports of runs only")
    if options.seeds < MIN_PAIRS:
        raise ConfigError(f"--seeds: expected at least {MIN_PAIRS}, got {options.seeds}")
    config = msgspec.structs.replace(run_config(options, options.rate), **scenario_settings(options))
    for target in names.values():  # one that cannot be run is refused before the others have taken their time
        plan_run(msgspec.structs.replace(config, target=target))
    labels = iter(list(names) * options.seeds)
    return run_interleaved(
        config,
        list(names.values()),
        options.seeds,
        run,
        lambda each: print(run_line(next(labels), each), flush=True),
        own_service_times=options.own_service_times,
    )


def _is_target(side: str) -> bool:
    return "://" in side or side.startswith((SIMULATED, "inproc:"))
