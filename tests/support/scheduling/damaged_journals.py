"""Damages journals at random: `python -m tests.support.scheduling.damaged_journals --count 10000 --seed 0`.

The command replays each of them as `sluice replay` does, in one process. It prints what became of them and the longest
time that one took, and fails at the first exception.
"""

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.gateway.cli.main import main as sluice
from tests.support.scheduling.recorded_machine import recorded

LINES = 150
"""The lines of a journal that are kept, so that one takes milliseconds."""
NUMBERS = (-1, 0, 1, 2, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 64, 10**30, -(1 << 63), 0.5, -0.0, 1e308, 1e-308)
OTHERS: tuple[Any, ...] = (None, True, "", "m:1", "x" * 3000, [], {}, [[]], {"": None}, "\ud800")


def damaged(journal: Sequence[bytes], source: random.Random) -> bytes:
    """A journal with one to three damages."""
    lines = list(journal)
    for _ in range(source.randint(1, 3)):
        if not lines:
            break
        # The first line is the one that says the most.
        place = 0 if source.random() < 0.3 else source.randrange(len(lines))
        match source.randrange(9):
            case 0:
                lines[place] = _with_other_bytes(lines[place], source)
            case 1:
                del lines[place : place + source.choice((1, 1, 10))]
            case 2:
                lines.insert(source.randrange(len(lines) + 1), lines[place])
            case 3:
                other = source.randrange(len(lines))
                lines[place], lines[other] = lines[other], lines[place]
            case 4:
                lines = lines[: place + 1]
                lines[-1] = lines[-1][: source.randrange(len(lines[-1]))]
            case _:
                with contextlib.suppress(ValueError, RecursionError):  # it has other bytes already
                    lines[place] = _with_other_value(lines[place], source)
    return b"".join(lines)


def _with_other_bytes(line: bytes, source: random.Random) -> bytes:
    found = bytearray(line or b"\n")
    for _ in range(source.choice((1, 1, 30))):
        place = source.randrange(len(found))
        found[place : place + source.choice((0, 1, 1, 20))] = source.choice(
            (source.randbytes(1), b"", bytes(500), b"[" * 3000, b"\xff\xfe", b'"', b"}")
        )
    return bytes(found)


def _with_other_value(line: bytes, source: random.Random) -> bytes:
    document = json.loads(line)
    parent, key = source.choice(list(_places(document)))
    value = parent[key]
    if isinstance(parent, dict) and source.random() < 0.2:
        del parent[key]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = source.choice((*NUMBERS, value + 1, value - 1, value * 1000, -value))
    elif isinstance(value, str) and source.random() < 0.5:
        strings = [each[at] for each, at in _places(document) if isinstance(each[at], str)]
        parent[key] = source.choice(strings)
    elif isinstance(value, list) and value and source.random() < 0.7:
        parent[key] = source.choice((value * source.choice((2, 30)), value[:-1], value[::-1]))
    else:
        parent[key] = source.choice((*NUMBERS, *OTHERS))
    return json.dumps(document).encode() + b"\n"


def _places(document: Any) -> Any:
    """The places of all values in a document: what holds it, and its key or index."""
    for key, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def replayed(text: bytes, path: Path) -> tuple[int, str]:
    """The exit status of `sluice replay`, and what it says."""
    path.write_bytes(text)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = sluice(["replay", str(path)])
    return status, output.getvalue()


def main() -> None:
    """Replay many of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    statuses: Counter[int] = Counter()
    longest_s, longest = 0.0, -1
    with tempfile.TemporaryDirectory() as directory:
        journals = [recorded(seed)[:LINES] for seed in range(4)]
        for number in range(options.seed, options.seed + options.count):
            source = random.Random(number)
            text = damaged(source.choice(journals), source)
            begun = time.perf_counter()
            try:
                status, _ = replayed(text, Path(directory, "journal"))
            except BaseException:
                print(f"seed {number}")
                raise
            statuses[status] += 1
            if (took_s := time.perf_counter() - begun) > longest_s:
                longest_s, longest = took_s, number
    print(
        f"{options.count} journals: exit statuses {dict(statuses)}, the longest took {longest_s:.3f} s (seed {longest})"
    )


if __name__ == "__main__":
    main()
