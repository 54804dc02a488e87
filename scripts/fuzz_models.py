"""Mutates model files and their configurations and reads them: `python -m scripts.fuzz_models --count 5000`.

Every one must be right, or be broken with a reason of one line, within a second. Trial runs are left out: they are in a
process of their own.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec
import onnx

from sluice.models.repository.scan import CONFIG_FILE, Repository
from tests.support.models.exported_models import EXPORTS
from tests.support.models.onnx_models import save_mlp

LONGEST_S = 1.0
_MODEL = "model.onnx"
_LABELS = "cat\ndog\nowl\n"
_CHANGES = (1, 1, 2, 6)
_BYTES = (
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff" * 9 + b"\x01",
    b"\x80" * 10,
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"..",
    b"/",
)
"""Bytes at the ends of ranges, the longest number of protobuf and one that is longer, and text that is not UTF-8."""
_WORDS = (
    *(
        "-1",
        "0",
        "1",
        "9223372036854775808",
        "1e309",
        "nan",
        "true",
        "TYPE_FP16",
        "TYPE_BF16",
        "KIND_GPU",
        '"x"',
        '"y"',
    ),
    *("{", "}", "[", "]", ":", ",", "#", '"', "'", "\\", "\x00", "\ufeff", "\r", "é", "\u2028", "{ " * 200, "a" * 5000),
    *("input", "output", "name", "dims", "reshape", "max_batch_size", "ensemble_scheduling", "model_warmup", "version"),
)
_CONFIG = """\
name: "model"
platform: "onnxruntime_onnx"
max_batch_size: 8
version_policy { latest { num_versions: 1 } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000 max_queue_size: 10 }
}
optimization { graph { level: 1 } }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } } ]
response_cache { enable: true }
"""


class Failure(NamedTuple):
    """Files that are not refused as they should be: the changed one, and the reason."""

    number: int
    content: bytes
    reason: str


class Found(NamedTuple):
    """The outcome of mutated files: `broken` counts those that were refused."""

    failures: list[Failure]
    broken: int
    slowest_s: float


class _Sample(NamedTuple):
    model: bytes
    config: str


def main() -> int:
    """Run the command; returns 1 if a file leads to a traceback or takes longer than a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="how many files to read")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    options = parser.parse_args()
    started = time.perf_counter()
    found = fuzz(options.count, options.seed)
    for each in found.failures:
        print(f"{each.number}: {each.reason}\n{each.content[:500]!r}\n")
    print(
        f"seed {options.seed}: {options.count} files, {found.broken} broken, {len(found.failures)} failures, slowest "
        f"{found.slowest_s * 1000:.0f} ms, in {time.perf_counter() - started:.0f} s"
    )
    return 1 if found.failures else 0


def fuzz(count: int, seed: int) -> Found:
    """Read `count` mutated files, ONNX and `config.pbtxt` in turn; processor time of `LONGEST_S` is a failure."""
    failures: list[Failure] = []
    broken, slowest_s = 0, 0.0
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch("sluice.models.backends.trial.tried", lambda tensors, path, shapes=None: tensors),
    ):
        samples = _samples(Path(name) / "samples")
        directory = Path(name) / "models"
        model, config = directory / "model" / "1" / _MODEL, directory / "model" / CONFIG_FILE
        model.parent.mkdir(parents=True)
        config.with_name("labels.txt").write_text(_LABELS)
        for number in range(count):
            chance = random.Random(f"{seed}/{number}")
            sample = chance.choice(samples)
            if number % 2:
                sample = sample if sample.config else samples[-1]
                content = _mutated_text(sample.config, chance).encode()
                model.write_bytes(sample.model)
                config.write_bytes(content)
            else:
                mutated = _mutated_graph(sample.model, chance) if chance.random() < 0.5 else sample.model
                content = _mutated_bytes(mutated, [each.model for each in samples], chance)
                model.write_bytes(content)
                config.write_text(sample.config)
            started = time.process_time()
            try:
                reasons = _read(directory)
            except Exception:  # what a user would see as a traceback
                failures.append(Failure(number, content, traceback.format_exc(limit=-4)))
                continue
            took_s = time.process_time() - started
            slowest_s = max(slowest_s, took_s)
            broken += bool(reasons)
            if took_s > LONGEST_S:
                failures.append(Failure(number, content, f"took {took_s:.1f} s"))
            failures += [
                Failure(number, content, f"not a line: {reason[:300]!r}")
                for reason in reasons
                if not reason.isprintable() or len(reason) > 10_000
            ]
    return Found(failures, broken, slowest_s)


def _read(directory: Path) -> list[str]:
    """Scan a repository, as the server and its workers get it; returns the reasons of what is broken."""
    found = Repository.scan(directory)
    msgspec.msgpack.encode([entry.spec for entry in found.models.values()])
    return [each.reason for each in found.broken]


def _samples(directory: Path) -> list[_Sample]:
    for name, export in EXPORTS.items():
        export.save(directory, name)
    last = directory / "~"
    save_mlp(last / "1" / _MODEL, [4, 8, 3])
    (last / CONFIG_FILE).write_text(_CONFIG)
    return [
        _Sample(
            (entry / "1" / _MODEL).read_bytes(),
            config.read_text() if (config := entry / CONFIG_FILE).exists() else "",
        )
        for entry in sorted(directory.iterdir())
    ]


def _mutated_graph(data: bytes, chance: random.Random) -> bytes:
    """A model with tensors of other names, types and shapes."""
    model = onnx.load_model_from_string(data)
    for _ in range(chance.choice(_CHANGES)):
        group = chance.choice([model.graph.input, model.graph.output])
        tensor = chance.choice(group or [onnx.ValueInfoProto()])
        form = tensor.type.tensor_type
        match chance.randrange(7):
            case 0:
                tensor.name = chance.choice(["", "x", "y", "é", "\x00", "a\nb", "n" * 5000, "\u2028"])
            case 1:
                form.elem_type = chance.choice([-1, *range(30), 2**31 - 1])
            case 2:
                form.shape.dim.add().dim_value = chance.choice([-(2**63), -1, 0, 1, 2**31, 2**63 - 1])
            case 3:
                form.shape.dim.add().dim_param = chance.choice(["", "N", "batch", "é", "\n"])
            case 4:
                form.ClearField(chance.choice(["shape", "elem_type"]))
            case 5:
                group.add().CopyFrom(tensor)
            case _:
                weights = model.graph.initializer.add(name="w", data_location=onnx.TensorProto.EXTERNAL)
                location = chance.choice(
                    ["", ".", "..", "/dev/zero", "model.onnx", "\x00", "a" * 5000, "1/../x", "é\n"]
                )
                weights.external_data.add(key="location", value=location)
    return bytes(model.SerializeToString())


def _mutated_bytes(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    for _ in range(chance.choice((0, *_CHANGES))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data = data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
            case 1:
                data = data[:place] + chance.choice(_BYTES) + data[place + chance.randrange(3) :]
            case 2:
                data = data[:place] + data[place + chance.randint(1, 20) :]
            case 3:
                data = data[:place] + data[place : place + chance.randint(1, 60)] * chance.randint(2, 50) + data[place:]
            case 4:
                other = chance.choice(others)
                start = chance.randrange(len(other))
                data = data[:place] + other[start : start + chance.randint(1, 200)] + data[place:]
            case _:
                data = data[: max(1, place)] if chance.random() < 0.2 else data + chance.choice(others)
    return data


def _mutated_text(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice(_CHANGES)):
        words = text.split(" ")
        place = chance.randrange(len(words))
        match chance.randrange(5):
            case 0:
                words[place] = chance.choice(_WORDS)
            case 1:
                del words[place]
            case 2:
                words[place:place] = words[place : place + chance.randint(1, 30)] * chance.randint(1, 5)
            case 3:
                words[place:place] = [chance.choice(_WORDS)]
            case _:
                other = chance.randrange(len(words))
                words[place], words[other] = words[other], words[place]
        text = " ".join(words) or " "
    return text


if __name__ == "__main__":
    sys.exit(main())
