"""The score of a run as its detail log tells it: LoadGen's own or one in its format."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.loadgen.mlperf.detail_log import MARKER, Value
from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM
from sluice.loadgen.mlperf.logs import DETAIL
from sluice.models.errors import ConfigError

SCORE_KEYS = {
    SERVER: "result_completed_samples_per_sec",
    OFFLINE: "result_samples_per_second",
    SINGLE_STREAM: "early_stopping_latency_ss",
    MULTI_STREAM: "early_stopping_latency_ms",
}
_VALIDITY = "result_validity"


class _Line(msgspec.Struct, frozen=True):
    key: str
    value: Value | dict[str, str]


@dataclass(frozen=True)
class ScoredLog:
    """The part of a performance run that a compliance test needs.

    `score` is a rate, or the nanoseconds of a closed loop; `samples` is the number of samples, and
    `invalid_reason` is empty for a valid run.
    """

    folder: Path
    scenario: str
    score: float
    samples: int
    target_latency_ns: int
    invalid_reason: str

    @property
    def is_latency(self) -> bool:
        """True where a smaller score is better."""
        return self.scenario in (SINGLE_STREAM, MULTI_STREAM)

    @property
    def per_s(self) -> float:
        """The score as a rate."""
        if not self.is_latency:
            return self.score
        return 1e9 / self.score if self.score else 0.0

    @property
    def text(self) -> str:
        """The score with its unit."""
        return f"{self.score / 1e6:.3f} ms" if self.is_latency else f"{self.score:.1f} samples/s"


def read_scored_log(folder: Path) -> ScoredLog:
    """Read the detail log in a folder; raises `ConfigError` for one that is not of a performance run."""
    file = folder / DETAIL
    values = _read_values(file)
    scenario = values.get("effective_scenario")
    if scenario not in SCORE_KEYS:
        raise ConfigError(f"{file}: expected effective_scenario to be one of {', '.join(SCORE_KEYS)}, got {scenario}")
    needed = (SCORE_KEYS[str(scenario)], _VALIDITY, "result_query_count", "generated_samples_per_query")
    if missing := [key for key in needed if key not in values]:
        raise ConfigError(f"{file}: expected the log of a performance run; it has no {missing[0]}")
    samples = _number(file, values, "result_query_count") * _number(file, values, "generated_samples_per_query")
    return ScoredLog(
        folder,
        str(scenario),
        _number(file, values, SCORE_KEYS[str(scenario)]),
        int(samples),
        int(_number(file, values, "effective_target_latency_ns")),
        "" if values[_VALIDITY] == "VALID" else str(values.get("result_invalid_reason") or "early stopping is not met"),
    )


def _number(file: Path, values: dict[str, Value | dict[str, str]], key: str) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{file}: {key}: expected a number, got {value!r}")
    return value


def _read_values(file: Path) -> dict[str, Value | dict[str, str]]:
    """The values by key; of several lines with one key the first counts."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    values: dict[str, Value | dict[str, str]] = {}
    marker = MARKER.strip()
    for number, text in enumerate(lines, 1):
        if not text.startswith(marker):
            if number == 1:
                raise ConfigError(f"{file}:1: expected a line that starts with {marker}")
            continue
        try:
            line = msgspec.json.decode(text.removeprefix(marker), type=_Line)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{file}:{number}: expected a JSON object with key and value: {error}") from error
        values.setdefault(line.key, line.value)
    return values
