"""Counts how many of Triton's configurations Sluice reads: `python -m scripts.count_configs DIR...`.

The directories are searched for `*.pbtxt`, for instance `qa` and `docs` of Triton's repository `server`. Only the
configuration is looked at, not the model's file: it counts as read if every field of it is honoured, or changes no
answer. Configurations of backends that Sluice does not have do not count, nor do those that Triton itself refuses: its
tests keep the error beside them, in a file whose name starts with `expected`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.models.errors import ConfigError
from sluice.models.triton_config.check import BACKENDS, PLATFORMS, check_config, check_options
from sluice.models.triton_config.instance_groups import CPU, GPU
from sluice.models.triton_config.model_config import ENSEMBLE
from sluice.models.triton_config.pbtxt import decode_config
from sluice.models.triton_config.sequences import check_sequences

UNNAMED = "none given"
"""The backend of a configuration that leaves it to the model's file."""
SERVED = (*BACKENDS, ENSEMBLE, UNNAMED)


class Verdict(NamedTuple):
    """A configuration that was looked at: `problem` is "" if it is read."""

    path: Path
    backend: str
    problem: str


def judge(path: Path) -> Verdict:
    """Read a configuration as a server would with the kind of partitions that it asks for."""
    backend = _backend(path)
    try:
        config = decode_config(path.read_text(encoding="utf-8"), "config")
        kind = GPU if any(group.kind == GPU for group in config.instance_group) else CPU
        check_config(config, config.name, "config", (kind,))
        if not config.is_ensemble and config.backend:
            check_options(config, "config")
        if config.sequence_batching is not None:
            check_sequences(config, config.sequence_batching, "config")
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        return Verdict(path, backend, str(error).removeprefix("config"))
    return Verdict(path, backend, "")


def find(directories: Sequence[Path]) -> Iterator[Path]:
    """The configurations in directories that Triton does not refuse itself."""
    for directory in directories:
        for path in sorted(directory.rglob("*.pbtxt*")):
            is_expectation = path.name.startswith("expected")
            if path.is_file() and not is_expectation and not any(path.parent.glob("expected*")):
                yield path


def main() -> int:
    """Print the counts and the reasons; returns the exit status, 1 if less than `--least` percent are read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--least", type=float, default=0, metavar="PERCENT", help="fail if less are read")
    options = parser.parse_args()
    verdicts = [judge(path) for path in find(options.directories)]
    served = [each for each in verdicts if each.backend in SERVED]
    others = Counter(each.backend for each in verdicts if each.backend not in SERVED)
    for name in SERVED:
        mine = [each for each in served if each.backend == name]
        print(f"{name:12} {sum(not each.problem for each in mine):4} of {len(mine):4} are read")
    for verdict in served:
        if verdict.problem:
            print(f"refused: {verdict.path}{verdict.problem}")
    read = sum(not each.problem for each in served)
    share = 100 * read / len(served) if served else 0.0
    print(f"{read} of {len(served)} configurations of backends that Sluice has are read: {share:.1f} %")
    print(f"others: {sum(others.values())} ({', '.join(f'{name} {count}' for name, count in others.most_common())})")
    return int(share < options.least)


def _backend(path: Path) -> str:
    """The backend that a configuration names, or its platform stands for."""
    from google.protobuf import text_format  # type: ignore[import-untyped]
    from tritonclient.grpc import model_config_pb2

    message = model_config_pb2.ModelConfig()
    try:
        text_format.Merge(path.read_text(encoding="utf-8"), message)
    except (text_format.ParseError, OSError, UnicodeDecodeError):
        return "no configuration"
    backend: str = message.backend or PLATFORMS.get(message.platform) or message.platform or UNNAMED
    return backend


if __name__ == "__main__":
    sys.exit(main())
