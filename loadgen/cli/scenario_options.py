"""The options of a run's scenario: its shape, and how long it goes on."""

import argparse
from typing import Any

from sluice.loadgen.scenarios.config import PERCENTILE, WARMUP_S, ScenarioName
from sluice.models.command_line import Parser, quantity

_MODES = {"performance": False, "accuracy": True}
_SINGLE_STREAM_PERCENTILE = 90.0
_WITHOUT_WARMUP = (ScenarioName.SINGLE_STREAM, ScenarioName.MULTI_STREAM, ScenarioName.OFFLINE)
"""Scenarios in which MLPerf counts every query, also the first ones; its Server scenario has a warm-up here."""


def add_scenario_options(parser: Parser) -> None:
    """Add the options that choose a scenario and its bounds, to a parser that has the others of a run."""
    add = parser.group("scenario").add_argument
    names = [name.value for name in ScenarioName]
    add("--scenario", choices=names, default=names[0], help=f"shape of the run (default {names[0]})")
    add("--rate", type=float, default=0.0, help="mean arrivals a second; for jobs, of jobs")
    add("--concurrency", type=int, metavar="N", help="queries open at a time (default: 1, for offline 256)")
    add("--samples-per-query", type=int, metavar="N", help="for multi-stream (default 8) and jobs (default 64)")
    seconds = quantity("_s")
    add("--duration", "--max-duration", type=seconds, metavar="S", help="most seconds in which queries leave")
    add("--queries", "--max-queries", type=int, metavar="N", help="most queries; with --duration whichever comes first")
    add("--min-duration", type=seconds, metavar="S", help="end after these seconds and --min-queries")
    add("--min-queries", type=int, metavar="N", help="end after these queries and --min-duration")
    add(
        "--mode",
        type=_is_accuracy,
        default=False,
        dest="each_once",
        metavar="performance|accuracy",
        help="samples drawn at random, or each once in random order (default performance)",
    )
    add("--each-once", action="store_true", help="the same as --mode accuracy")
    # The scenario says what these are unless they are given.
    parser.set_defaults(percentile=None, warmup=None)


def scenario_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run that the scenario options, and the scenario's defaults for other options, give."""
    scenario = ScenarioName(options.scenario)
    percentile = _SINGLE_STREAM_PERCENTILE if scenario is ScenarioName.SINGLE_STREAM else PERCENTILE
    warmup_s = 0.0 if scenario in _WITHOUT_WARMUP else WARMUP_S
    return {
        "scenario": scenario,
        "concurrency": options.concurrency,
        "samples_per_query": options.samples_per_query,
        "min_duration_s": options.min_duration,
        "min_queries": options.min_queries,
        "percentile": percentile if options.percentile is None else options.percentile,
        "warmup_s": warmup_s if options.warmup is None else options.warmup,
    }


def _is_accuracy(text: str) -> bool:
    if text not in _MODES:
        raise argparse.ArgumentTypeError(f"expected performance or accuracy, got {text!r}")
    return _MODES[text]
