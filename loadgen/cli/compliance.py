"""The command `loadgen compliance`: one of MLPerf's compliance tests of a target, or of logs."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.options import EPILOG, INVALID, MET, MISSED, add_run_options, run_config, write_report
from sluice.loadgen.cli.scenario_options import add_scenario_options, scenario_settings
from sluice.loadgen.mlperf.compliance import (
    DTYPES,
    Compliance,
    ComplianceTest,
    changed_config,
    check_answers,
    check_performance,
)
from sluice.loadgen.mlperf.logs import write_mlperf_logs
from sluice.loadgen.mlperf.run_as_logged import check_loggable, keeping_outputs
from sluice.loadgen.mlperf.scored_log import ScoredLog, read_scored_log
from sluice.loadgen.reports.document import document
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.simulation.target import SIMULATED
from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.models.errors import ConfigError

_PERFORMANCE, _ACCURACY = "performance", "accuracy"


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser(
        "compliance",
        help="run one of MLPerf's compliance tests",
        description="Runs a target as usual and under a test, with the queries of MLPerf's LoadGen, and compares the "
        "runs; or compares the logs of runs that were made before.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=_compliance, each_once=False)
    add = parser.add_argument
    add("test", choices=[test.value for test in ComplianceTest], help="the test")
    add("--out", type=Path, metavar="DIR", help="folder for the logs of the runs, each in a folder of its own")
    add("--reference", type=Path, metavar="DIR", help="logs of a usual run, which then is not made again")
    add("--accuracy-logs", type=Path, metavar="DIR", help="for TEST01: logs of an accuracy run, likewise")
    add("--test-logs", type=Path, metavar="DIR", help="logs of a run under the test; then no run is made")
    add("--logged-answers", type=int, default=64, metavar="N", help="for TEST01: answers to log (default 64)")
    add("--dtype", choices=DTYPES, default="byte", help="for TEST01: type of the answers' data (default byte)")
    add("--tolerance", type=float, default=0.0, metavar="X", help="for TEST01: relative or absolute (default 0)")
    add_run_options(parser, target=False)
    parser.add_argument("--target", default="", help="the server, unless --test-logs is given")
    add_scenario_options(parser)


def _compliance(options: argparse.Namespace) -> int:
    test = ComplianceTest(options.test)
    if not options.tolerance >= 0:
        raise ConfigError(f"--tolerance: expected at least 0, got {options.tolerance:g}")
    if options.logged_answers < 1:
        raise ConfigError(f"--logged-answers: expected at least 1, got {options.logged_answers}")
    verdict = _of_logs(test, options) if options.test_logs is not None else _of_target(test, options)
    outcome = {True: "PASSED", False: "FAILED", None: "INVALID"}[verdict.passed]
    print(f"{test} {outcome}: {verdict.sentence}")
    write_report(options.json, document({"kind": "compliance"} | msgspec.to_builtins(verdict)))
    return INVALID if verdict.passed is None else MET if verdict.passed else MISSED


def _of_logs(test: ComplianceTest, options: argparse.Namespace) -> Compliance:
    needs_accuracy = test is ComplianceTest.TEST01
    if options.target or options.reference is None or (needs_accuracy and options.accuracy_logs is None):
        logs = "--reference, --accuracy-logs" if needs_accuracy else "--reference"
        raise ConfigError(f"compliance: --test-logs goes with {logs} and without --target")
    return _judge(
        test, options, read_scored_log(options.reference), read_scored_log(options.test_logs), options.accuracy_logs
    )


def _of_target(test: ComplianceTest, options: argparse.Namespace) -> Compliance:
    config = _usual_config(test, options)
    if options.reference is None:
        _make(config, options.out / _PERFORMANCE)
    reference = read_scored_log(options.reference or options.out / _PERFORMANCE)
    accuracy = options.accuracy_logs
    if test is ComplianceTest.TEST01 and accuracy is None:
        accuracy = options.out / _ACCURACY
        without_end = msgspec.structs.replace(
            config, each_once=True, duration_s=None, queries=None, min_duration_s=None, min_queries=None
        )
        _make(without_end, accuracy)
    _make(changed_config(test, config, reference, options.logged_answers), options.out / test)
    return _judge(test, options, reference, read_scored_log(options.out / test), accuracy)


def _judge(
    test: ComplianceTest, options: argparse.Namespace, reference: ScoredLog, tested: ScoredLog, accuracy: Path | None
) -> Compliance:
    verdict = check_performance(test, reference, tested)
    if accuracy is None or test is not ComplianceTest.TEST01:
        return verdict
    return check_answers(verdict, accuracy, tested.folder, options.dtype, options.tolerance)


def _usual_config(test: ComplianceTest, options: argparse.Namespace) -> RunConfig:
    if not options.target or not options.model or options.out is None:
        raise ConfigError("compliance: expected --target, --model and --out, or --test-logs and --reference")
    if test is ComplianceTest.TEST01 and options.target.startswith(SIMULATED):
        raise ConfigError("TEST01: a simulated target gives no outputs; expected a live one")
    config = msgspec.structs.replace(run_config(options, options.rate), **scenario_settings(options))
    if config.arrivals.process not in (ArrivalProcess.POISSON, ArrivalProcess.MLPERF):
        raise ConfigError(f"--arrivals: compliance tests take LoadGen's, mlperf; got {config.arrivals.process}")
    if config.seed:
        raise ConfigError(f"--seed: compliance tests have MLPerf's seeds; expected 0, got {config.seed}")
    # LoadGen counts all queries, from the first.
    config = msgspec.structs.replace(config, arrivals=Arrivals(ArrivalProcess.MLPERF), warmup_s=0.0)
    check_loggable(config)
    return config


def _make(config: RunConfig, folder: Path) -> None:
    print(f"running {folder.name} …", flush=True)
    result = run(keeping_outputs(config))
    if result.interrupted:
        raise KeyboardInterrupt
    write_mlperf_logs(result, folder)
