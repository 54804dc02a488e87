"""LoadGen's configuration files as defaults of a command's options: `mlperf.conf`, `user.conf` and `audit.config`."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.loadgen.mlperf.conf_file import ConfFile, ConfSetting
from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM
from sluice.loadgen.records.outputs import KeptOutputs
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.traffic.arrivals import ArrivalProcess
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds, SampleChoice
from sluice.models.errors import ConfigError

_SERVER, _OFFLINE = ScenarioName.SERVER, ScenarioName.OFFLINE
_SINGLE, _MULTI = ScenarioName.SINGLE_STREAM, ScenarioName.MULTI_STREAM

NAMES = {_SERVER: SERVER, _OFFLINE: OFFLINE, _SINGLE: SINGLE_STREAM, _MULTI: MULTI_STREAM}
"""LoadGen's names of the scenarios."""


class ConfKind(enum.StrEnum):
    """Kind of a configuration file, by its option; a later kind overrides an earlier one."""

    MLPERF = "--mlperf-conf"
    USER = "--user-conf"
    AUDIT = "--audit-conf"


class _Option(NamedTuple):
    """The option that a key stands for in some scenarios: its `dest`, and the unit of the key in that of the option."""

    dest: str
    scenarios: Sequence[ScenarioName] = tuple(NAMES)
    unit: float = 1


_OPTIONS = (
    ("target_qps", _Option("rate", [_SERVER])),
    ("target_qps", _Option("expected_rate", [_OFFLINE])),
    ("target_latency", _Option("slo_ms", [_SERVER])),
    ("target_latency", _Option("expected_latency_ms", [_SINGLE, _MULTI])),
    ("target_latency_percentile", _Option("percentile", [_SERVER, _SINGLE, _MULTI])),
    ("min_duration", _Option("min_duration", unit=1e-3)),
    ("max_duration", _Option("duration", unit=1e-3)),
    ("min_query_count", _Option("min_queries")),
    ("max_query_count", _Option("queries")),
    ("samples_per_query", _Option("samples_per_query", [_MULTI])),
    ("max_async_queries", _Option("max_outstanding", [_SERVER])),
)
_CHOICES = {
    "performance_issue_unique": SampleChoice.UNIQUE,
    "performance_issue_same": SampleChoice.SAME,
    "sample_concatenate_permutation": SampleChoice.PERMUTATIONS,
}
_SEEDS = ("qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed")
_TEST05_SEEDS = tuple(f"test05_{name}" for name in _SEEDS)
_FIRST_FILE_ONLY = (*_SEEDS, "test05", *_TEST05_SEEDS, "accuracy_log_probability")
_OF_LANGUAGE_MODELS = (
    *("use_token_latencies", "ttft_latency", "tpot_latency"),
    *("infer_token_latencies", "token_latency_scaling_factor"),
)


@dataclass(frozen=True)
class ConfSettings:
    """Defaults of options by their `dest`, and a note for each setting that has no effect."""

    defaults: Mapping[str, object]
    notes: Sequence[str]


def read_settings(files: Sequence[tuple[ConfKind, str]], model: str, scenario: ScenarioName) -> ConfSettings:
    """Read configuration files as LoadGen does for a run of `model`.

    Raises `ConfigError` with file and line for what cannot be read, and for settings that this load generator cannot
    follow.
    """
    if scenario not in NAMES:
        raise ConfigError(f"{files[0][0]}: expected --scenario {', '.join(NAMES)}; got {scenario}")
    found: dict[str, ConfSetting] = {}
    notes: list[str] = []
    for kind in ConfKind:
        for path in (path for each, path in files if each is kind):
            for key, setting in ConfFile(path).of_run(model, NAMES[scenario]):
                if key in _FIRST_FILE_ONLY and kind is not ConfKind.MLPERF:
                    notes.append(f"{setting.place}: {key}: ignored, as by LoadGen; it counts in {ConfKind.MLPERF} only")
                else:
                    found[key] = setting
    # A value of 0 means the same as none, except for a mode.
    given = {key: setting for key, setting in found.items() if setting.value or key == "mode"}
    _refuse(given, scenario)
    if "print_timestamps" in given:
        notes.append(f"{given['print_timestamps'].place}: print_timestamps: has no effect; reports have the times")
    return ConfSettings(_defaults(given, scenario), notes)


def _refuse(given: Mapping[str, ConfSetting], scenario: ScenarioName) -> None:
    for key in _OF_LANGUAGE_MODELS:
        if key in given:
            raise ConfigError(f"{given[key].place}: {key}: for language models only; tokens are not measured here")
    if "coalesce_queries" in given and scenario is _SERVER:
        place = given["coalesce_queries"].place
        raise ConfigError(f"{place}: coalesce_queries: expected 0; every query is a request of its own here")
    unique, same = (given.get(f"performance_issue_{name}") for name in ("unique", "same"))
    if unique is not None and same is not None:
        raise ConfigError(f"{same.place}: performance_issue_same: excludes performance_issue_unique ({unique.place})")
    mode = given.get("mode")
    if mode is not None and mode.value not in (1, 2):
        remedy = "make a run of each" if mode.value == 0 else "loadgen find-max finds the highest rate"
        raise ConfigError(f"{mode.place}: mode: expected 1 (accuracy) or 2 (performance), got {mode.value}; {remedy}")


def _defaults(given: Mapping[str, ConfSetting], scenario: ScenarioName) -> dict[str, object]:
    defaults: dict[str, object] = {
        option.dest: given[key].value if option.unit == 1 else given[key].value * option.unit
        for key, option in _OPTIONS
        if key in given and scenario in option.scenarios
    }
    if "mode" in given:
        defaults["each_once"] = given["mode"].value == 1
    # LoadGen leaves nothing out at the start.
    defaults |= {"arrivals": ArrivalProcess.MLPERF.value, "mlperf_rules": _rules(given), "warmup": 0.0}
    return defaults | {"kept_outputs": _kept_outputs(given, scenario)}


def _kept_outputs(given: Mapping[str, ConfSetting], scenario: ScenarioName) -> KeptOutputs | None:
    """The answers that are logged in performance mode: a share of them, or as many as are expected to make a number."""

    def number(key: str, default: float) -> float:
        return given[key].value if key in given else default

    share = number("accuracy_log_probability", 0) / 100
    if target := number("accuracy_log_sampling_target", 0):
        per_query = number("samples_per_query", 8) if scenario is _MULTI else 1
        latency_ms = number("target_latency", 8 if scenario is _MULTI else 1)
        rate = 1000 / latency_ms if scenario in (_SINGLE, _MULTI) else number("target_qps", 1)
        slack = 1.1 if scenario is _OFFLINE else 1.0
        planned = int(slack * rate * number("min_duration", 10_000) / 1000)
        share = target / (max(planned, number("min_query_count", 100)) * per_query)
    return KeptOutputs(min(share, 1.0), int(number("accuracy_log_rng_seed", 0))) if share else None


def _rules(given: Mapping[str, ConfSetting]) -> MlperfRules:
    def whole(key: str, default: int = 0) -> int:
        return int(given[key].value) if key in given else default

    official = MlperfSeeds()
    names = _TEST05_SEEDS if "test05" in given else _SEEDS
    seeds = map(whole, names, (official.qsl, official.sample_index, official.schedule))
    return MlperfRules(
        seeds=MlperfSeeds(*seeds),
        set_size=whole("performance_sample_count_override"),
        accuracy_samples=whole("accuracy_sample_count_override"),
        choice=next((choice for key, choice in _CHOICES.items() if key in given), SampleChoice.RANDOM),
        place=whole("performance_issue_same_index"),
    )
