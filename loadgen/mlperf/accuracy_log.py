"""`mlperf_log_accuracy.json`: the answers of samples, in hexadecimal."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluice.loadgen.traffic.mersenne import Integers
from sluice.models.errors import ConfigError


class LoggedAnswer(msgspec.Struct, frozen=True):
    """One answer: the number of the sample in the run, its number in the data set, and its bytes in hexadecimal."""

    seq_id: int
    qsl_idx: int
    data: str


def accuracy_log(samples: Integers, answers: Mapping[int, bytes]) -> str:
    """The text of the file: a JSON array with an answer on each line."""
    lines = (
        f'{{ "seq_id" : {number}, "qsl_idx" : {samples[number]}, "data" : "{answers[number].hex().upper()}" }}'
        for number in sorted(answers)
    )
    return "\n".join(("[", ",\n".join(lines), "]\n")) if answers else "[\n]\n"


def read_accuracy_log(file: Path) -> list[LoggedAnswer]:
    """Read such a file; raises `ConfigError` when it is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[LoggedAnswer])
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: expected a list of seq_id, qsl_idx and data: {error}") from error
