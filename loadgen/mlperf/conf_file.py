"""The format of LoadGen's configuration files: lines `model.scenario.key = value`."""

import enum
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM
from sluice.models.errors import ConfigError
from sluice.models.spelling import did_you_mean

MAX_FILE_BYTES = 1 << 20

SCENARIOS = (SERVER, OFFLINE, SINGLE_STREAM, MULTI_STREAM)
_ANY = "*"


class _Form(enum.StrEnum):
    """Form of a key's values."""

    WHOLE = "a whole number from 0 to 2**64 - 1"
    SWITCH = "0 or 1"
    AMOUNT = "a number of at least 0"
    PERCENTAGE = "a percentage above 0 and below 100"
    MODE = "0, 1, 2 or 3"

    def fits(self, value: float) -> bool:
        """True for a usable value."""
        match self:
            case _Form.WHOLE:
                return isinstance(value, int) and 0 <= value < 1 << 64
            case _Form.SWITCH:
                return value in (0, 1)
            case _Form.AMOUNT:
                return 0 <= value < math.inf
            case _Form.PERCENTAGE:
                return 0 < value < 100
            case _Form.MODE:
                return value in (0, 1, 2, 3)


_FORMS = {
    "mode": _Form.MODE,
    "target_qps": _Form.AMOUNT,
    "target_latency": _Form.AMOUNT,
    "target_latency_percentile": _Form.PERCENTAGE,
    "min_duration": _Form.WHOLE,
    "max_duration": _Form.WHOLE,
    "min_query_count": _Form.WHOLE,
    "max_query_count": _Form.WHOLE,
    "samples_per_query": _Form.WHOLE,
    "coalesce_queries": _Form.SWITCH,
    "max_async_queries": _Form.WHOLE,
    "performance_sample_count_override": _Form.WHOLE,
    "accuracy_sample_count_override": _Form.WHOLE,
    "performance_issue_unique": _Form.SWITCH,
    "performance_issue_same": _Form.SWITCH,
    "performance_issue_same_index": _Form.WHOLE,
    "sample_concatenate_permutation": _Form.SWITCH,
    "print_timestamps": _Form.SWITCH,
    "accuracy_log_rng_seed": _Form.WHOLE,
    "accuracy_log_sampling_target": _Form.WHOLE,
    "accuracy_log_probability": _Form.AMOUNT,
    "qsl_rng_seed": _Form.WHOLE,
    "sample_index_rng_seed": _Form.WHOLE,
    "schedule_rng_seed": _Form.WHOLE,
    "test05": _Form.SWITCH,
    "test05_qsl_rng_seed": _Form.WHOLE,
    "test05_sample_index_rng_seed": _Form.WHOLE,
    "test05_schedule_rng_seed": _Form.WHOLE,
    "target_duration": _Form.WHOLE,  # in the official file, and read by no LoadGen of today
    "use_token_latencies": _Form.SWITCH,
    "ttft_latency": _Form.AMOUNT,
    "tpot_latency": _Form.AMOUNT,
    "infer_token_latencies": _Form.SWITCH,
    "token_latency_scaling_factor": _Form.AMOUNT,
}


@dataclass(frozen=True)
class ConfSetting:
    """A value, and the place where it stands: file and line."""

    value: int | float
    place: str


class _Pattern(NamedTuple):
    """The left side of a line: model and scenario may be `*`, which stands for any."""

    model: str
    scenario: str
    key: str


class ConfFile:
    """A file that was read; raises `ConfigError` with file and line for one that has something unusable."""

    def __init__(self, path: str) -> None:
        self._settings: dict[_Pattern, ConfSetting] = {}
        for number, line in enumerate(_text(path).split("\n"), 1):
            words = line.split()
            if words and not words[0].startswith("#"):
                pattern, setting = _line(words, f"{path}:{number}")
                self._settings[pattern] = setting

    def of_run(self, model: str, scenario: str) -> Iterator[tuple[str, ConfSetting]]:
        """Yield the settings of a model in a scenario, by key.

        A line for both comes before one for the scenario, that before one for the model, and that before one for all.
        """
        for key in _FORMS:
            for one, other in ((model, scenario), (_ANY, scenario), (model, _ANY), (_ANY, _ANY)):
                if (setting := self._settings.get(_Pattern(one, other, key))) is not None:
                    yield key, setting
                    break


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: too long; expected at most {MAX_FILE_BYTES} bytes")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _line(words: Sequence[str], place: str) -> tuple[_Pattern, ConfSetting]:
    if len(words) != 3 or words[1] != "=":
        raise ConfigError(f"{place}: expected 'model.scenario.key = value' with spaces, got {' '.join(words)!r}")
    parts = words[0].rsplit(".", 2)
    if len(parts) != 3:
        raise ConfigError(f"{place}: expected model.scenario.key, got {words[0]!r}")
    pattern = _Pattern(*parts)
    if pattern.scenario not in (*SCENARIOS, _ANY):
        hint = did_you_mean(pattern.scenario, SCENARIOS)
        raise ConfigError(f"{place}: expected scenario *, {', '.join(SCENARIOS)}; got {pattern.scenario!r}{hint}")
    form = _FORMS.get(pattern.key)
    if form is None:
        raise ConfigError(f"{place}: {pattern.key}: not a key of LoadGen{did_you_mean(pattern.key, _FORMS)}")
    value = _number(words[2])
    if value is None or not form.fits(value):
        raise ConfigError(f"{place}: {pattern.key}: expected {form}, got {words[2]!r}")
    return pattern, ConfSetting(value, place)


def _number(text: str) -> int | float | None:
    """A number as C reads it: decimal, hexadecimal after 0x, or octal after 0."""
    try:
        return int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None
