"""The command `loadgen mlperf`: MLPerf's own LoadGen drives the target."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.conf_options import add_conf_options
from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.mlperf.engine import EngineTask, run_engine
from sluice.models.errors import ConfigError

_EXPECTED_LATENCY_MS = 0.2
"""Short, since LoadGen only plans more queries than it needs where answers take longer."""


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    text = "have MLPerf's own LoadGen drive the target (needs the extra `mlperf`)"
    parser = commands.add_parser("mlperf", help=text, description=text, epilog=EPILOG)
    add_run_options(parser)
    add_scenario_options(parser)
    add_conf_options(parser)
    out = "folder for LoadGen's log files; new or empty"
    parser.group("report").add_argument("--out", required=True, metavar="DIR", help=out)
    add = parser.group("mlperf").add_argument
    rate = "for offline: samples a second to plan for (default 1)"
    add("--expected-rate", type=float, default=1.0, metavar="RATE", help=rate)
    add(
        "--expected-latency-ms",
        type=float,
        default=_EXPECTED_LATENCY_MS,
        metavar="MS",
        help=f"for streams: shortest latency to plan for (default {_EXPECTED_LATENCY_MS})",
    )
    parser.set_defaults(run=_run, arrivals="mlperf")


def _run(options: argparse.Namespace) -> int:
    if options.json is not None:
        raise ConfigError("--json: LoadGen reports in its log files; expected --out only")
    # Nobody would read the times that the server tells.
    settings = scenario_settings(options) | {"explain_share": 0.0}
    config = msgspec.structs.replace(run_config(options, options.rate), **settings)
    folder = Path(options.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out {folder}: expected a folder that is new or empty")
    folder.mkdir(parents=True, exist_ok=True)
    task = EngineTask(config, folder, options.expected_rate, options.expected_latency_ms, options.kept_outputs)
    result = run_engine(task)
    print(result.summary, end="")
    if result.failure:
        print(f"Result: INVALID: {result.failure}")
        return INVALID
    if result.valid:
        return MET
    return INVALID if result.too_short else MISSED
