"""The command `loadgen schedule`: make and inspect schedule files."""

import argparse
from typing import Any

import msgspec
import numpy as np

from sluice.loadgen.cli.options import MET, add_run_options, run_config, write_report
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.reports.arrivals import arrival_lines
from sluice.loadgen.run.runner import plan_run
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.traffic.description import describe_arrivals
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.schedule_file import read_schedule, write_schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("schedule", help="make and inspect files with the schedule of a run")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    make = actions.add_parser("make", help="write the schedule that `loadgen run` would play with these options")
    make.set_defaults(run=_make)
    make.add_argument("--out", required=True, metavar="FILE", help="the .npz or .csv file to write")
    add_run_options(make)
    add_scenario_options(make)
    inspect = actions.add_parser("inspect", help="print the digest, rate, gaps and peaks of a schedule")
    inspect.set_defaults(run=_inspect)
    inspect.add_argument("file", help="the .npz or .csv file")
    inspect.add_argument("--json", metavar="FILE", help="also write the figures as JSON")


def _make(options: argparse.Namespace) -> int:
    config = msgspec.structs.replace(run_config(options, options.rate), **scenario_settings(options))
    if config.scenario is not ScenarioName.SERVER:
        raise ConfigError(f"--scenario {config.scenario}: has no due times to write; expected {ScenarioName.SERVER}")
    schedule = plan_run(config).schedule
    write_schedule(schedule, options.out)
    return _print(schedule, options.out, options.json)


def _inspect(options: argparse.Namespace) -> int:
    return _print(read_schedule(options.file), options.file, options.json)


def _print(schedule: Schedule, file: str, json: str | None) -> int:
    figures = describe_arrivals(schedule.due_ns / NS_PER_S)
    streams = np.bincount(schedule.stream).tolist()
    cancelled = 0 if schedule.cancel_ns is None else int((schedule.cancel_ns >= 0).sum())
    requests = len(np.unique(schedule.sample))
    print("\n".join([file, f"  digest     {schedule.digest}", *arrival_lines(figures)]))
    print(f"  requests   {requests} different ones")
    if len(streams) > 1:
        print(f"  streams    {', '.join(map(str, streams))} queries")
    if schedule.cancel_ns is not None:
        print(f"  cancelled  {cancelled} queries are given up if they are still open")
    document = {
        "file": file,
        "digest": schedule.digest,
        **msgspec.to_builtins(figures),
        "requests": requests,
        "streams": streams,
        "cancelled": cancelled,
    }
    write_report(json, msgspec.json.format(msgspec.json.encode(document)))
    return MET
