"""The command `loadgen find-max`: the highest rate that meets the objective."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, warn, write_report
from sluice.loadgen.reports.search import StoredProbes, max_rate_json, max_rate_text, probe_json, probe_text
from sluice.loadgen.run.find_max import (
    DURATION_S,
    MAX_PROBES,
    RATE_LIMIT,
    MaxRate,
    Probe,
    ProbePlan,
    SearchSettings,
    find_max,
    queries_to_resolve,
    shortest_probe_s,
)
from sluice.loadgen.run.runner import run
from sluice.loadgen.simulation.target import SIMULATED
from sluice.models.command_line import quantity
from sluice.models.errors import ConfigError

PRECISION, SIMULATED_PRECISION = 2.0, 1.0
"""The usual width of the last bracket in %: in virtual time nobody waits for the longer runs that 1 % takes."""


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("find-max", help="find the highest rate that meets the objective", epilog=EPILOG)
    # A fixed number of queries ends sooner than the objective at a high rate, and then proves nothing.
    parser.set_defaults(run=_find_max, queries=None, each_once=False)
    add = parser.group("search").add_argument
    add("--start", type=float, default=100.0, help="rate of the first probe (default %(default)s)")
    add(
        "--precision",
        type=float,
        help=f"width of the last bracket in %% (default {PRECISION:g}; {SIMULATED_PRECISION:g} for a target sim:FILE)",
    )
    add("--max-rate", type=float, default=RATE_LIMIT, help="highest rate to try (default %(default)g)")
    add("--max-probes", type=int, default=MAX_PROBES, help="most runs to make (default %(default)s)")
    add(
        "--duration",
        type=quantity("_s"),
        metavar="S",
        help=f"seconds of the longest run (default {DURATION_S:g}, or twice the shortest if that is more; for a target "
        "sim:FILE as many as --precision needs)",
    )
    add(
        "--min-duration",
        type=quantity("_s"),
        metavar="S",
        help="seconds of the shortest run (default: so long that a rate too high by --precision shows)",
    )
    add("--resume", metavar="FILE", help="go on from the report that --json wrote, with the same options")
    add_run_options(parser)


def _find_max(options: argparse.Namespace) -> int:
    search = _CommandLineSearch(options)
    found = search.find()
    print(max_rate_text(found, search.precision), end="")
    if found.client_limited or found.too_short or found.probes[-1].interrupted:
        return INVALID
    if found.rate is None:
        return MISSED
    return MET if found.confirmed else INVALID


class _CommandLineSearch:
    """A search whose probes are printed, and written to the report of `--json` as they end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._settings = _settings(options)
        self._settings.check()
        self.precision = self._settings.precision
        options.duration = self._settings.duration_s
        self._config = run_config(options, options.start)
        if self._config.schedule_file:
            raise ConfigError("--schedule: has queries at one rate; expected --arrivals, at any rate that is tried")
        resume = options.resume
        self._stored = None if resume is None else StoredProbes(Path(resume), self._settings, self._config)
        self._made: list[Probe] = []
        self._reports: list[bytes] = []

    def find(self) -> MaxRate:
        """Search, and write the whole report at the end."""
        found = find_max(self._probe, self._settings)
        self._write(found)
        return found

    def _probe(self, plan: ProbePlan) -> Probe:
        stored = None if self._stored is None else self._stored.get(plan)
        probe, report = self._run(plan) if stored is None else stored
        print(probe_text(probe), end="", flush=True)
        self._made.append(probe)
        self._reports.append(report)
        # A search that is killed goes on from here.
        self._write(MaxRate(None, None, False, tuple(self._made)))
        return probe

    def _run(self, plan: ProbePlan) -> tuple[Probe, bytes]:
        longest_s = self._settings.longest_s(plan.rate)
        result = run(
            msgspec.structs.replace(
                self._config,
                rate=plan.rate,
                seed=self._config.seed + plan.number,
                duration_s=longest_s,
                decide_from_s=longest_s if plan.confirms else self._settings.min_duration_s,
            )
        )
        if plan.number == 0:
            warn(result)
        probe = Probe.of(result, plan.confirms)
        return probe, probe_json(result, probe)

    def _write(self, found: MaxRate) -> None:
        write_report(self._options.json, max_rate_json(found, self._settings, self._reports))


def _settings(options: argparse.Namespace) -> SearchSettings:
    simulated = options.target.startswith(SIMULATED)
    usual = SIMULATED_PRECISION if simulated else PRECISION
    precision = (usual if options.precision is None else options.precision) / 100
    longest, shortest = options.duration, options.min_duration
    if shortest is None:
        shortest = shortest_probe_s(options.warmup, options.slo_ms, precision) if precision > 0 else 0.0
        if longest is not None:
            shortest = min(shortest, longest)
    queries = 0
    if longest is None:
        longest = max(DURATION_S, 2 * shortest)
        if simulated and precision > 0:  # virtual time costs nobody a wait
            queries = queries_to_resolve(precision)
    return SearchSettings(
        start=options.start,
        precision=precision,
        max_rate=options.max_rate,
        max_probes=options.max_probes,
        duration_s=longest,
        min_duration_s=shortest,
        queries=queries,
    )
