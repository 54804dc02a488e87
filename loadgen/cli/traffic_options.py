"""The options of a run's traffic: when queries arrive, to which models they go, and when they are given up."""

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from sluice.loadgen.mixes.mix import Mix, MixStream, mix_of_trace
from sluice.loadgen.mixes.mix_file import read_mix
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.arrivals import (
    DEFAULT_AMPLITUDE,
    DEFAULT_CV,
    DEFAULT_PERIOD_S,
    DEFAULT_SHAPE,
    ArrivalProcess,
    Arrivals,
)
from sluice.loadgen.traffic.draws import Cancellation, DeadlineSpread
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds
from sluice.loadgen.traffic.presets import PRESETS, SLO_SCALES
from sluice.loadgen.traffic.processes.mmpp import parse_states
from sluice.loadgen.traffic.processes.profile import parse_profile
from sluice.loadgen.traffic.traces.formats.found import open_trace
from sluice.models.command_line import Parser, quantity
from sluice.models.errors import ConfigError

_T = TypeVar("_T")

_PARAMETERS = {
    "cv": (ArrivalProcess.GAMMA, ArrivalProcess.UNIFORM),
    "shape": (ArrivalProcess.PARETO,),
    "states": (ArrivalProcess.MMPP,),
    "amplitude": (ArrivalProcess.DIURNAL,),
    "period": (ArrivalProcess.DIURNAL,),
    "trace": (ArrivalProcess.TRACE,),
}
"""The processes that take a parameter."""


def add_arrival_options(parser: Parser) -> None:
    """Add the options that say when queries arrive."""
    add = parser.group("traffic").add_argument
    processes = [process.value for process in ArrivalProcess]
    add("--arrivals", choices=processes, help="arrival process (default poisson, or trace with --trace)")
    add("--cv", type=float, help=f"for gamma and uniform: coefficient of variation of the gaps (gamma {DEFAULT_CV:g})")
    add("--shape", type=float, help=f"for pareto: exponent of the tail of the gaps (default {DEFAULT_SHAPE:g})")
    add(
        "--states",
        type=_argument(parse_states),
        metavar="FACTOR@TIME,…",
        help="for mmpp: relative rates and mean stays (default 1@8s,4@2s)",
    )
    add("--amplitude", type=float, help=f"for diurnal: swing around the rate, 0 to 1 (default {DEFAULT_AMPLITUDE:g})")
    add(
        "--period",
        type=quantity("_s"),
        metavar="S",
        help=f"for diurnal: seconds of a swing (default {DEFAULT_PERIOD_S:g})",
    )
    add(
        "--profile",
        type=_argument(parse_profile),
        metavar="RATE@TIME,…",
        help="steps and ramps of the rate, such as 100@10s,100..400@5s; --rate scales it to that mean",
    )
    add("--preset", choices=list(PRESETS), help="arrivals of ESG's load, in place of --arrivals")
    add("--trace", metavar="FILE", help="trace to play, at its own rate or stretched to --rate")


def add_traffic_options(parser: Parser) -> None:
    """Add the options that say when queries arrive, where they go, and when they are given up."""
    add_arrival_options(parser)
    add = parser.group("traffic").add_argument
    add("--mix", metavar="FILE", help="YAML file of several models or pipelines, in place of --model")
    add(
        "--cancel",
        type=_argument(_cancellation),
        metavar="P%@MS",
        help="give up a share of the queries if they are open for longer",
    )
    add(
        "--deadline-spread",
        type=_argument(_spread),
        metavar="LOW..HIGH",
        help="an objective for each query, drawn between these, in place of --slo-ms",
    )
    scales = ", ".join(f"{name} ({scale:g})" for name, scale in SLO_SCALES.items())
    add(
        "--slo-scale",
        type=_argument(_slo_scale),
        default=1.0,
        metavar="X",
        help=f"multiply all objectives by a number, or by ESG's: {scales}",
    )
    add("--schedule", default="", metavar="FILE", help="play the schedule of a file of `loadgen schedule make`")
    seeds = "for mlperf: the three seeds of LoadGen (default: the official ones)"
    add("--mlperf-seeds", type=_argument(_seeds), metavar="QSL,SAMPLE,SCHEDULE", help=seeds)
    parser.set_defaults(mlperf_rules=MlperfRules())


def with_traffic(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """The run with the traffic that the options describe; its rate may come from them."""
    chosen, own_rate = chosen_arrivals(options)
    mix = _mix(config, options, chosen)
    spread = options.deadline_spread
    if spread is not None and (config.slo_ms is not None or mix is not None):
        raise ConfigError("--deadline-spread: stands in place of --slo-ms and of --mix; expected one of them")
    if options.schedule:
        _check_alone(options)
    config = msgspec.structs.replace(
        config,
        model=config.model or ("" if mix is None else f"mix {mix.source}"),
        rate=config.rate or own_rate or 0.0,
        slo_ms=None if mix is not None else config.slo_ms,
        arrivals=chosen,
        mlperf=_mlperf_rules(options),
        mix=mix,
        cancellation=options.cancel,
        deadline_spread=spread,
        schedule_file=options.schedule,
    )
    return with_slo_scale(config, options.slo_scale)


def with_slo_scale(config: RunConfig, factor: float) -> RunConfig:
    """The run with all its objectives multiplied."""
    if not 0 < factor < float("inf"):
        raise ConfigError(f"--slo-scale: expected a number above 0, got {factor:g}")
    if factor == 1:
        return config
    own = [config.deadline_spread, *(each.slo_ms for each in config.streams)]
    if all(each is None for each in own) and config.arrivals.process is not ArrivalProcess.TRACE:
        raise ConfigError("--slo-scale: multiplies objectives; expected some, by --slo-ms, --deadline-spread or --mix")

    def scaled(slo_ms: float | None) -> float | None:
        return None if slo_ms is None else slo_ms * factor

    mix, spread = config.mix, config.deadline_spread
    if mix is not None:
        streams = tuple(msgspec.structs.replace(each, slo_ms=scaled(each.slo_ms)) for each in mix.streams)
        mix = Mix(streams, mix.source)
    if spread is not None:
        spread = DeadlineSpread(spread.low_ms * factor, spread.high_ms * factor)
    return msgspec.structs.replace(
        config,
        slo_ms=scaled(config.slo_ms),
        mix=mix,
        deadline_spread=spread,
        trace_slo_scale=config.trace_slo_scale * factor,
    )


def chosen_arrivals(options: argparse.Namespace) -> tuple[Arrivals, float | None]:
    """The arrivals that the options describe, and the rate that they have by themselves, if any."""
    if options.preset is not None:
        given = ["--arrivals"] if options.arrivals else []
        given += [f"--{name}" for name in (*_PARAMETERS, "profile") if getattr(options, name) is not None]
        if given:
            raise ConfigError(f"--preset: stands alone; expected no {given[0]} beside it")
        return PRESETS[options.preset]
    default = ArrivalProcess.POISSON if options.trace is None else ArrivalProcess.TRACE
    process = default if options.arrivals is None else ArrivalProcess(options.arrivals)
    for name, processes in _PARAMETERS.items():
        if getattr(options, name) is not None and process not in processes:
            raise ConfigError(f"--{name}: requires --arrivals {' or '.join(processes)}, got --arrivals {process}")
    if process is ArrivalProcess.TRACE and not options.trace:
        raise ConfigError("--arrivals trace: requires --trace FILE")
    fields = {
        "cv": options.cv,
        "shape": options.shape,
        "states": options.states,
        "amplitude": options.amplitude,
        "period_s": options.period,
        "trace": options.trace,
        "profile": options.profile,
    }
    if process is ArrivalProcess.UNIFORM and options.cv is None:
        fields["cv"] = PRESETS["heavy"].arrivals.cv
    chosen = Arrivals(process, **{name: each for name, each in fields.items() if each is not None})
    return chosen, chosen.own_rate()


def _mlperf_rules(options: argparse.Namespace) -> MlperfRules:
    """The rules of LoadGen that the options describe."""
    rules: MlperfRules = options.mlperf_rules
    if options.mlperf_seeds is None:
        return rules
    if options.arrivals != ArrivalProcess.MLPERF:
        raise ConfigError(
            f"--mlperf-seeds: requires --arrivals mlperf, got --arrivals {options.arrivals or ArrivalProcess.POISSON}"
        )
    return msgspec.structs.replace(rules, seeds=options.mlperf_seeds)


def _mix(config: RunConfig, options: argparse.Namespace, chosen: Arrivals) -> Mix | None:
    """The mix of a file, or of a trace that names models where there is no --model."""
    if options.mix is not None:
        plain = {
            "--model": config.model,
            "--slo-ms": config.slo_ms is not None,
            "--samples": config.samples != SampleSource(),
            "--rows": config.rows != 1,
        }
        if given := next((name for name, is_given in plain.items() if is_given), None):
            raise ConfigError(f"{given}: a mix has its own; expected no {given} beside --mix")
        return read_mix(options.mix)
    if config.model:
        return None
    if chosen.process is not ArrivalProcess.TRACE:
        raise ConfigError("--model: missing; expected --model, --mix, or a --trace that names models")
    stream = MixStream(name="", model="", slo_ms=config.slo_ms, samples=config.samples, rows=config.rows)
    return mix_of_trace(open_trace(chosen.trace), chosen.trace, stream)


def _check_alone(options: argparse.Namespace) -> None:
    """Refuse what would draw the traffic of a run that plays a schedule."""
    # Commands that choose the rates have no --rate, and refuse schedules themselves.
    bounds = ("rate", "duration", "queries") if hasattr(options, "rate") else ()
    for name in (*bounds, "arrivals", *_PARAMETERS, "profile", "preset", "cancel"):
        if getattr(options, name):
            raise ConfigError(f"--schedule: the file has the traffic; expected no --{name} beside it")


def _argument(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """The type of an option that `parse` reads; its errors are those of the command line."""

    def read(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


_CANCEL = re.compile(r"(?P<percent>[0-9.]+)%@(?P<after>.+)")
_MILLISECONDS: Callable[[str], Any] = quantity("_ms")


def _cancellation(text: str) -> Cancellation:
    match = _CANCEL.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        percent, after_ms = float(match["percent"]), _MILLISECONDS(match["after"])
    except (ValueError, argparse.ArgumentTypeError):
        raise ValueError(f"expected PERCENT%@TIME, such as 10%@50ms, got '{text:.80}'") from None
    return Cancellation(percent / 100, after_ms)


def _spread(text: str) -> DeadlineSpread:
    low, dots, high = text.strip().partition("..")
    unit = high.lstrip("0123456789._ ")
    try:
        if not dots:
            raise ValueError
        low_ms, high_ms = _MILLISECONDS(low if low.lstrip("0123456789._ ") else low + unit), _MILLISECONDS(high)
    except (ValueError, argparse.ArgumentTypeError):
        raise ValueError(f"expected LOW..HIGH, such as 50..200ms, got '{text:.80}'") from None
    return DeadlineSpread(low_ms, high_ms)


def _slo_scale(text: str) -> float:
    if text in SLO_SCALES:
        return SLO_SCALES[text]
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, {', '.join(SLO_SCALES)}; got '{text:.80}'") from None


def _seeds(text: str) -> MlperfSeeds:
    try:
        seeds = [int(each) for each in text.split(",")]
    except ValueError:
        seeds = []
    if len(seeds) != 3 or not all(0 <= seed < 1 << 64 for seed in seeds):
        raise ValueError(f"expected three numbers from 0 to 2**64 - 1, got '{text:.80}'")
    return MlperfSeeds(*seeds)
