"""The options and exit statuses that the commands share."""

import argparse
import sys
from pathlib import Path

from sluice.loadgen.cli.target_options import add_target_options
from sluice.loadgen.cli.traffic_options import add_traffic_options, with_traffic
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.results.files import check_file, write_file
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import PERCENTILE, WARMUP_S, RunConfig
from sluice.models.client_tls import ClientTls
from sluice.models.command_line import Parser, quantity
from sluice.models.errors import ConfigError

MET, USAGE, MISSED, REGRESSION, INVALID, UNREACHABLE = 0, 1, 2, 3, 4, 5
"""Exit statuses: objective met, wrong usage, objective missed or not confirmed, regression, invalid run, target
unreachable."""

EPILOG = (
    "exit codes: 0 objective met, 1 usage, 2 objective missed or not confirmed, 3 regression, 4 invalid run, "
    "5 target unreachable"
)

_GROUPS = ("target", "scenario", "traffic", "objective", "samples", "report")
"""The groups of options, in the order in which their user needs them."""


def add_run_options(parser: Parser, *, target: bool = True) -> None:
    """Add the options of a run that every command with a target takes; without `target`, all but that."""
    for title in _GROUPS:
        parser.group(title)
    add_target_options(parser, target=target)
    add = parser.group("scenario").add_argument
    add(
        "--warmup",
        type=quantity("_s"),
        default=WARMUP_S,
        metavar="S",
        help="seconds at the start to leave out (default 1; for streams and offline 0)",
    )
    add(
        "--drain-timeout",
        type=quantity("_s"),
        default=10.0,
        metavar="S",
        help="seconds to wait for late answers (default 10)",
    )
    add_traffic_options(parser)
    parser.group("traffic").add_argument(
        "--seed", type=int, default=0, help="master seed of arrivals, samples and data (default 0)"
    )
    add = parser.group("objective").add_argument
    add("--slo-ms", type=quantity("_ms"), metavar="MS", help="latency objective; also sent with every query")
    add(
        "--percentile",
        type=float,
        default=PERCENTILE,
        help="%% of the queries that must meet it (default 99, single-stream 90)",
    )
    add = parser.group("samples").add_argument
    add("--samples", default="random", metavar="FILE", help="an .npz file, or random (default)")
    add("--input", type=_pair, action="append", default=[], metavar="NAME=KEY", help="array of a model input")
    add("--labels", default="", metavar="KEY", help="array of the expected classes; reports the accuracy")
    add("--subset", default="", metavar="KEY", help="array of the row numbers to use")
    add("--output", default="", metavar="NAME", help="output to compare with the labels (default: the first)")
    add("--rows", type=int, default=1, metavar="N", help="rows a query carries (default 1)")
    add = parser.group("report").add_argument
    add("--metrics-url", default="", metavar="URL", help="Prometheus metrics of the server, for the report")
    share = "%% of the queries that ask the server for their times by stage (default 1; 0: none)"
    add("--explain-share", type=float, default=1.0, metavar="P", help=share)
    add("--price-per-hour", type=float, metavar="X", help="what the server costs, for the cost of 1000 good answers")
    add("--json", type=report_file, metavar="FILE", help="also write the report as JSON")


def run_config(options: argparse.Namespace, rate: float) -> RunConfig:
    """The run that the options describe, at a rate, or at 0 for the one that its arrivals have by themselves."""
    config = RunConfig(
        target=options.target,
        model=options.model,
        rate=rate,
        duration_s=options.duration,
        queries=options.queries,
        slo_ms=options.slo_ms,
        percentile=options.percentile,
        seed=options.seed,
        samples=SampleSource(options.samples, dict(options.input), options.labels, options.subset),
        output=options.output,
        rows=options.rows,
        each_once=options.each_once,
        warmup_s=options.warmup,
        drain_timeout_s=options.drain_timeout,
        connections=options.connections,
        max_outstanding=options.max_outstanding,
        procs=options.procs,
        metrics_url=options.metrics_url,
        path=options.path,
        bodies=options.bodies,
        explain_share=options.explain_share / 100,
        price_per_hour=options.price_per_hour,
        headers=tuple(options.header),
        tls=ClientTls(options.cacert, options.cert, options.key),
    )
    return with_traffic(config, options)


def write_report(file: str | None, content: bytes) -> None:
    """Write a report to the file of `--json`, where that is given; a reader sees the old one or the new one."""
    if file is not None:
        write_file(Path(file), content)


def report_file(text: str) -> str:
    """The type of an option that names a file to write; one that cannot be written is refused before the run."""
    try:
        check_file(Path(text))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def warn(result: RunResult) -> None:
    """Print the notes of a result to stderr."""
    for note in result.notes:
        print(f"loadgen: {note}", file=sys.stderr)


def _pair(text: str) -> tuple[str, str]:
    name, equals, key = text.partition("=")
    if not (name and equals and key):
        raise argparse.ArgumentTypeError(f"expected NAME=KEY, got {text!r}")
    return name, key
