"""The command `loadgen trace`: import, change, cut and describe traces."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from sluice.loadgen.cli.options import MET, write_report
from sluice.loadgen.reports.arrivals import arrival_lines
from sluice.loadgen.traffic.description import describe_arrivals
from sluice.loadgen.traffic.seeds import generator
from sluice.loadgen.traffic.traces.formats.found import TraceFormat, format_of, import_trace, open_trace
from sluice.loadgen.traffic.traces.formats.options import ImportOptions, Spread
from sluice.loadgen.traffic.traces.trace import ArrivalTrace
from sluice.loadgen.traffic.traces.trace_file import write_trace_file
from sluice.loadgen.traffic.traces.transforms import FunctionMapping, mapped, rate_scaled, refitted, sliced, time_scaled
from sluice.models.command_line import quantity
from sluice.models.errors import ConfigError

_MOST_MODELS = 20
"""Most models that a description lists."""


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("trace", help="import, change, cut and describe traces of arrivals")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_import(actions)
    _add_convert(actions)
    _add_slice(actions)
    _add_describe(actions)


def _add_import(actions: Any) -> None:
    add = _action(actions, "import", _import, "read a published trace, and write it as the project's own").add_argument
    add("file", nargs="+", help="the trace; files of several days are joined, a day apart")
    _add_format(add)
    _add_out(add)
    spreads = [each.value for each in Spread]
    add("--spread", choices=spreads, default="uniform", help="arrivals inside a minute or second (default uniform)")
    add("--keep", type=_percent, default=1.0, metavar="P%", help="keep each arrival with this chance (default 100%%)")
    _add_seed(add)


def _add_convert(actions: Any) -> None:
    add = _action(actions, "convert", _convert, "change the speed, rate, burstiness or models of a trace").add_argument
    add("file", help="a trace of any format that its heading tells")
    _add_out(add)
    add("--time-scale", type=float, metavar="X", help="multiply all times")
    add("--rate-scale", type=float, metavar="X", help="thin the arrivals (below 1) or replicate them (above 1)")
    add("--rate", type=float, metavar="R", help="multiply all times so that the mean rate is this")
    add("--window", type=quantity("_s"), metavar="S", help="refit gamma gaps in windows of S seconds")
    add("--cv", type=float, help="with --window: coefficient of variation of the new gaps (default: as measured)")
    add("--cv-scale", type=float, metavar="X", help="with --window: multiply the measured one (default 1)")
    add("--models", metavar="A,B,…", help="divide the functions of the trace among these models")
    mappings = [each.value for each in FunctionMapping]
    add("--map", choices=mappings, default="round-robin", help="how functions are divided (default round-robin)")
    _add_seed(add)


def _add_slice(actions: Any) -> None:
    add = _action(actions, "slice", _slice, "cut a part of a trace").add_argument
    add("file", help="a trace of any format that its heading tells")
    _add_out(add)
    add("--from", dest="from_s", type=quantity("_s"), default=0.0, metavar="S", help="first second (default 0)")
    add("--to", dest="to_s", type=quantity("_s"), required=True, metavar="S", help="second before which it ends")


def _add_describe(actions: Any) -> None:
    add = _action(actions, "describe", _describe, "print the rate, burstiness and peaks of a trace").add_argument
    add("file", help="the trace")
    _add_format(add)
    add("--json", metavar="FILE", help="also write the figures as JSON")


def _action(actions: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text)
    parser.set_defaults(run=run)
    return parser


def _add_format(add: Any) -> None:
    formats = [each.value for each in TraceFormat]
    add("--format", choices=formats, help="format of the file (default: the one that its heading tells)")


def _add_out(add: Any) -> None:
    add("--out", required=True, metavar="FILE", help="CSV file to write")


def _add_seed(add: Any) -> None:
    add("--seed", type=int, default=0, help="seed of what is drawn (default 0)")


def _import(options: argparse.Namespace) -> int:
    spread = Spread(options.spread)
    parts = [
        import_trace(file, _format(options, file), ImportOptions(spread, options.keep, options.seed + day))
        for day, file in enumerate(options.file)
    ]
    return _write(_joined(parts), options.out)


def _convert(options: argparse.Namespace) -> int:
    trace = open_trace(options.file)
    rng = generator(options.seed, "trace")
    if options.window is None and (options.cv is not None or options.cv_scale is not None):
        raise ConfigError("--cv and --cv-scale: require --window, in which gaps are fitted")
    if options.cv is not None and options.cv_scale is not None:
        raise ConfigError("--cv: sets what --cv-scale multiplies; expected one of the two")
    if options.time_scale is not None and options.rate is not None:
        raise ConfigError("--rate: changes the speed as --time-scale does; expected one of the two")
    if options.models is not None:
        trace = mapped(trace, options.models.split(","), FunctionMapping(options.map), rng)
    if options.rate_scale is not None:
        trace = rate_scaled(trace, options.rate_scale, rng)
    if options.window is not None:
        trace = refitted(trace, options.window, options.cv, options.cv_scale or 1.0, rng)
    if options.time_scale is not None:
        trace = time_scaled(trace, options.time_scale)
    if options.rate is not None:
        if not 0 < options.rate < float("inf"):
            raise ConfigError(f"--rate: expected a number above 0, got {options.rate:g}")
        trace = time_scaled(trace, trace.mean_rate / options.rate)
    return _write(trace, options.out)


def _slice(options: argparse.Namespace) -> int:
    return _write(sliced(open_trace(options.file), options.from_s, options.to_s), options.out)


def _describe(options: argparse.Namespace) -> int:
    trace = import_trace(options.file, _format(options, options.file), ImportOptions())
    figures = describe_arrivals(trace.t_s)
    models = _models(trace)
    print("\n".join([options.file, *arrival_lines(figures), *_model_lines(models, figures.span_s)]))
    document = {"file": options.file, **msgspec.to_builtins(figures), "models": models}
    write_report(options.json, msgspec.json.format(msgspec.json.encode(document)))
    return MET


def _format(options: argparse.Namespace, file: str) -> TraceFormat:
    return format_of(file) if options.format is None else TraceFormat(options.format)


def _joined(parts: list[ArrivalTrace]) -> ArrivalTrace:
    """The traces in one, each a day after the one before."""
    whole, *others = parts
    for day, part in enumerate(others, 1):
        whole = whole.followed_by(replace(part, t_s=part.t_s + day * 86_400.0))
    return whole


def _write(trace: ArrivalTrace, file: str) -> int:
    write_trace_file(trace, file)
    print("\n".join([file, *arrival_lines(describe_arrivals(trace.t_s))]))
    return MET


def _models(trace: ArrivalTrace) -> dict[str, int]:
    """The arrivals of each model, most first."""
    if trace.model is None:
        return {}
    counts = np.bincount(trace.model.index, minlength=len(trace.model.names))
    order = np.argsort(-counts, kind="stable").tolist()
    return {trace.model.names[number]: int(counts[number]) for number in order}


def _model_lines(models: dict[str, int], span_s: float) -> Iterator[str]:
    total = sum(models.values())
    for name, count in list(models.items())[:_MOST_MODELS]:
        rate = f"{count / span_s:.3g}/s" if span_s else ""
        yield f"  {name:.40}  {count} ({count / total:.1%})  {rate}"
    if (more := len(models) - _MOST_MODELS) > 0:
        yield f"  and {more} more models"


def _percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 5%, got '{text:.80}'") from None
