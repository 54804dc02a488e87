"""The command `loadgen`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from sluice.loadgen.papers.command import add_paper_command, run_paper
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.run.comparison import comparison_json, table
from sluice.loadgen.run.findmax import MAX_PROBES, MAX_RATE, Probe, find_max
from sluice.loadgen.run.report import peak_json, peak_text, probe_text, run_json, run_text
from sluice.loadgen.run.result import RunConfig, RunResult
from sluice.loadgen.run.scenario import run_server_scenario
from sluice.loadgen.target.base import TargetUnreachable
from sluice.loadgen.target.simulated import SIMULATED
from sluice.loadgen.traffic.arrivals import DEFAULT_CV, ArrivalProcess, Arrivals
from sluice.loadgen.validation.validate_sim import Validation, validate
from sluice.models.errors import ConfigError, ServingError
from sluice.mps.partitions.cpu import available_cores

MET, USAGE, MISSED, INVALID, UNREACHABLE = 0, 1, 2, 4, 5
"""Exit codes: the objective was met; wrong usage; missed; the run proves nothing; the target is not there."""

_EPILOG = "exit codes: 0 objective met, 1 usage, 2 objective missed, 4 invalid run, 5 target unreachable"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    if sys.platform != "linux":
        print("loadgen: runs on Linux only (it paces with timerfd)", file=sys.stderr)
        return USAGE
    options = _parser().parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except TargetUnreachable as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return UNREACHABLE
    except (ServingError, OSError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return INVALID


def _run(options: argparse.Namespace) -> int:
    result = run_server_scenario(_config(options, options.rate))
    print(run_text(result), end="")
    _write(options.json, run_json(result))
    if result.invalid:
        return INVALID
    return MET if result.slo_met else MISSED


def _find_max(options: argparse.Namespace) -> int:
    def probe(rate: float, number: int) -> RunResult:
        return run_server_scenario(msgspec.structs.replace(_config(options, rate), seed=options.seed + number))

    def report(probe: Probe) -> None:
        print(probe_text(probe), end="", flush=True)

    peak = find_max(probe, options.start, options.precision / 100, options.max_probes, options.max_rate, report)
    print(peak_text(peak), end="")
    _write(options.json, peak_json(peak))
    if peak.client_limited or peak.probes[-1].result.interrupted:
        return INVALID
    return MISSED if peak.rate is None else MET


def _validate_sim(options: argparse.Namespace) -> int:
    if not options.target.startswith(SIMULATED):
        raise ConfigError(f"--target {options.target}: expected sim:FILE.yaml, which describes the live server as well")
    simulation = Path(options.target.removeprefix(SIMULATED))
    if not options.loads or min(options.loads) <= 0 or options.seeds < 1 or not options.duration > options.warmup:
        raise ConfigError("--loads and --seeds: expected some above 0; --duration: expected more than --warmup")
    validation = Validation(
        run=_config(options, rate=1.0),
        simulation=simulation,
        loads=tuple(load / 100 for load in options.loads),
        seeds=options.seeds,
        cores=tuple(options.cores) or available_cores(),
        capacity=options.capacity,
    )
    write = simulation.with_suffix(".calibrated.yaml") if options.write is None else Path(options.write)
    capacity, loads = validate(validation, write, lambda line: print(line, file=sys.stderr, flush=True))
    print(table(loads), end="")
    _write(options.json, comparison_json(capacity, loads))
    if any(load.limits for load in loads):
        return INVALID
    return MET if all(cell.within for load in loads for cell in load.cells) else MISSED


_COMMANDS = {"run": _run, "find-max": _find_max, "validate-sim": _validate_sim, "paper": run_paper}


def _config(options: argparse.Namespace, rate: float) -> RunConfig:
    return RunConfig(
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
        metrics_url=options.metrics_url,
        arrivals=_arrivals(options),
    )


def _arrivals(options: argparse.Namespace) -> Arrivals:
    process = ArrivalProcess(options.arrivals)
    if options.cv is not None and process is not ArrivalProcess.GAMMA:
        raise ConfigError("--cv: belongs to --arrivals gamma")
    if bool(options.trace) != (process is ArrivalProcess.TRACE):
        raise ConfigError("--trace: expected a file with --arrivals trace, and only there")
    return Arrivals(process, DEFAULT_CV if options.cv is None else options.cv, options.trace)


def _write(file: str | None, content: bytes) -> None:
    if file is not None:
        Path(file).write_bytes(content)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with the code for wrong usage; argparse's own means a missed objective here."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="loadgen", description="Open-loop load with honest latencies.", epilog=_EPILOG)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one run of the Server scenario", epilog=_EPILOG)
    run.add_argument("--rate", type=float, required=True, help="mean arrivals a second")
    run.add_argument("--duration", type=float, metavar="S", help="seconds of arrivals")
    run.add_argument("--queries", type=int, metavar="N", help="arrivals; with --duration whichever comes first")
    _add_shared(run)
    run.add_argument("--each-once", action="store_true", help="every sample once, shuffled, instead of at random")
    find = commands.add_parser("find-max", help="the highest rate that meets the objective", epilog=_EPILOG)
    find.add_argument("--start", type=float, default=100.0, help="rate of the first probe (default %(default)s)")
    find.add_argument("--precision", type=float, default=2.0, help="width of the last bracket, %% (default 2)")
    find.add_argument("--max-rate", type=float, default=MAX_RATE, help="highest rate to try (default %(default)g)")
    find.add_argument("--max-probes", type=int, default=MAX_PROBES, help="most runs to make (default %(default)s)")
    find.add_argument("--duration", type=float, default=10.0, metavar="S", help="seconds of every run (default 10)")
    _add_shared(find)
    # A number of queries would last shorter than the objective at a high rate, and then proves nothing.
    find.set_defaults(queries=None, each_once=False)
    _add_validate_sim(commands.add_parser("validate-sim", help="the same schedules live and simulated", epilog=_EPILOG))
    add_paper_command(commands)
    return parser


def _add_validate_sim(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--loads", type=_numbers, default=[20, 40, 60, 80, 120], metavar="%,%", help="of capacity (20,40,60,80,120)")
    add("--capacity", type=float, metavar="RATE", help="queries a second that are 100 %% (default: measured)")
    add("--seeds", type=int, default=5, metavar="N", help="pairs of runs a load, from --seed on (default 5)")
    add("--duration", type=float, default=6.0, metavar="S", help="seconds of every run (default 6)")
    add("--cores", type=_numbers, default=[], metavar="N,N", help="gateway's and client's first, then the partitions'")
    add("--write", metavar="FILE", help="calibrated simulation (default: beside the file, as .calibrated.yaml)")
    _add_shared(parser)
    parser.set_defaults(queries=None, each_once=False)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _add_shared(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, help="http://host:port, grpc://host:port or sim:FILE.yaml")
    add("--model", required=True, help="name of a model or pipeline")
    add("--warmup", type=float, default=1.0, metavar="S", help="first seconds left out of the figures (default 1)")
    add("--drain-timeout", type=float, default=10.0, metavar="S", help="wait for the last answers (default 10)")
    add("--slo-ms", type=float, metavar="MS", help="latency objective; also sent with every query")
    add("--percentile", type=float, default=99.0, help="%% of the queries that must meet it (default 99)")
    processes = [process.value for process in ArrivalProcess]
    add("--arrivals", choices=processes, default="poisson", help="how they are spread over time (default poisson)")
    add("--cv", type=float, help=f"for gamma: coefficient of variation of the gaps (default {DEFAULT_CV:g})")
    add("--trace", default="", metavar="FILE", help="for trace: a CSV file of times, stretched to the rate")
    add("--seed", type=int, default=0, help="master seed of arrivals, samples and data (default 0)")
    add("--samples", default="random", metavar="FILE", help="an .npz file, or random (default)")
    add("--input", type=_pair, action="append", default=[], metavar="NAME=KEY", help="array of a model input")
    add("--labels", default="", metavar="KEY", help="array of the right classes: reports the accuracy")
    add("--subset", default="", metavar="KEY", help="array of the row numbers to use")
    add("--output", default="", metavar="NAME", help="output to compare with the labels (default: the first)")
    add("--rows", type=int, default=1, metavar="N", help="rows a query carries (default 1)")
    add("--connections", type=int, default=256, metavar="N", help="most HTTP connections (default 256)")
    add("--metrics-url", default="", metavar="URL", help="Prometheus metrics of the server to report from")
    add("--json", metavar="FILE", help="also write the report as JSON")


def _pair(text: str) -> tuple[str, str]:
    name, equals, key = text.partition("=")
    if not (name and equals and key):
        raise argparse.ArgumentTypeError(f"expected NAME=KEY, got {text!r}")
    return name, key


if __name__ == "__main__":
    sys.exit(main())
