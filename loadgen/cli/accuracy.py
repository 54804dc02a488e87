"""The command `loadgen accuracy`: every sample once, and the answers against what is expected."""

import argparse
from typing import Any

import msgspec

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, write_report
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.records.outputs import ExpectedOutputs, KeptOutputs
from sluice.loadgen.reports.document import document, run_json
from sluice.loadgen.run.accuracy import AccuracyCount, count_accuracy
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.simulation.target import SIMULATED
from sluice.models.errors import ConfigError


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("accuracy", help="send every sample once and check the answers", epilog=EPILOG)
    add_run_options(parser)
    add_scenario_options(parser)
    add = parser.add_argument
    add("--expected", default="", metavar="FILE", help=".npz file of the expected outputs by name")
    add("--tolerance", type=float, default=1e-5, metavar="X", help="relative or absolute, for numbers (default 1e-5)")
    add("--min-accuracy", type=float, metavar="%", help="least share of right rows, in %%; 100 with --expected")
    parser.set_defaults(run=_accuracy, scenario=ScenarioName.OFFLINE.value, each_once=True)


def _accuracy(options: argparse.Namespace) -> int:
    if bool(options.labels) == bool(options.expected):
        raise ConfigError("accuracy: expected either --labels KEY or --expected FILE")
    if options.target.startswith(SIMULATED):
        raise ConfigError("accuracy: a simulated target gives no outputs; expected a live one")
    if options.min_accuracy is not None and not 0 <= options.min_accuracy <= 100:
        raise ConfigError(f"--min-accuracy: expected a percentage, got {options.min_accuracy:g}")
    if options.min_accuracy is not None and 0 < options.min_accuracy < 1:
        raise ConfigError(f"--min-accuracy: expected a percentage, such as 98, got {options.min_accuracy:g} %")
    if not options.tolerance >= 0:
        raise ConfigError(f"--tolerance: expected at least 0, got {options.tolerance:g}")
    if not options.each_once or options.queries is not None or options.duration is not None:
        raise ConfigError("accuracy: every sample is sent once; expected no --mode, --queries or --duration")
    config = msgspec.structs.replace(run_config(options, options.rate), **scenario_settings(options))
    expected = None
    if options.expected:
        expected = ExpectedOutputs(options.expected, options.tolerance)
        config = msgspec.structs.replace(config, kept_outputs=KeptOutputs(names=expected.names))
    result = run(config)
    count = count_accuracy(result, expected)
    least = options.min_accuracy if options.min_accuracy is not None else 100.0 if expected is not None else None
    met = least is None or count.accuracy * 100 >= least
    print(_text(result, count, least, met=met), end="")
    write_report(options.json, _json(result, count, least, met=met))
    if result.interrupted:
        return INVALID
    return MET if met else MISSED


def _text(result: RunResult, count: AccuracyCount, least: float | None, *, met: bool) -> str:
    lines = [
        f"Accuracy: {result.config.model} at {result.config.target}",
        f"  rows       {count.rows}: {count.right} right, {count.answered - count.right} wrong, "
        f"{count.rows - count.answered} without an answer",
        *(f"  failure    {number} x {reason}" for reason, number in result.record.reasons.items()),
    ]
    if result.interrupted:
        verdict = "INVALID: interrupted before its end"
    elif least is None:
        verdict = "no --min-accuracy to meet"
    else:
        verdict = f"{'met' if met else 'MISSED'}, at least {least:g} % asked for"
    return "\n".join([*lines, f"Result: {count.accuracy:.2%} right; {verdict}", ""])


def _json(result: RunResult, count: AccuracyCount, least: float | None, *, met: bool) -> bytes:
    return document(
        {
            "kind": "accuracy",
            "rows": count.rows,
            "answered": count.answered,
            "right": count.right,
            "accuracy": count.accuracy,
            "min_accuracy_percent": least,
            "met": met and not result.interrupted,
            "run": msgspec.Raw(run_json(result)),
        }
    )
