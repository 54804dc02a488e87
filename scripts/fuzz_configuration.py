"""Mutates configurations of all kinds and reads them: `python -m scripts.fuzz_configuration --count 12000`.

Every one must be right or be refused by an error of one sentence, within a second.
"""

import argparse
import random
import sys
import time
import traceback
from typing import NamedTuple

from tests.support.configuration_files import FILES, ConfigurationFile
from tests.support.typos import KINDS, typo

LONGEST_S = 1.0
_SNIPPETS = (
    *("\t", "\n", " ", ":", ": ", "- ", "[", "]", "{", "}", ",", "#", "'", '"', "&a ", "*a", "<<: *a\n", "!!int "),
    *("? ", "---\n", "...\n", "%YAML 1.1\n", "|", ">", "\x00", "\ufeff", "\u2028", "é", "😀", "\r", "\\", "~", "null"),
    *("true", "off", ".inf", ".nan", "-1", "0", "1e309", "9" * 400, "0x", "1_000", "50mss", "64MB", "1.5GiB"),
    *("[" * 200, "{a: " * 50, "a" * 5000, "12:30", "2001-99-99", "=", "<", "${HOME}", "../..", "a.b.c", "request."),
)


class Failure(NamedTuple):
    """A text that a reader does not refuse as it should."""

    kind: str
    number: int
    text: str
    reason: str


def main() -> int:
    """Run the command; returns 1 if a configuration leads to a traceback or takes longer than a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12_000, help="how many configurations to read")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    options = parser.parse_args()
    started = time.perf_counter()
    failures, refused, slowest_s = fuzz(options.count, options.seed)
    for each in failures:
        print(f"{each.kind} {each.number}: {each.reason}\n{each.text[:2000]}\n")
    print(
        f"seed {options.seed}: {options.count} configurations, {refused} refused, {len(failures)} failures, slowest "
        f"{slowest_s * 1000:.0f} ms, in {time.perf_counter() - started:.0f} s"
    )
    return 1 if failures else 0


def fuzz(count: int, seed: int) -> tuple[list[Failure], int, float]:
    """Read `count` mutated files; returns the failures, the number of refused files, and the longest time in seconds.

    A file that takes longer than `LONGEST_S` of processor time is a failure.
    """
    failures: list[Failure] = []
    refused, slowest_s = 0, 0.0
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        file = FILES[number % len(FILES)]
        text = mutated(file, chance)
        started = time.process_time()
        try:
            error = file.error(text)
        except Exception:  # what a user would see as a traceback
            failures.append(Failure(file.kind, number, text, traceback.format_exc(limit=-3)))
            continue
        took_s = time.process_time() - started
        slowest_s = max(slowest_s, took_s)
        if took_s > LONGEST_S:
            failures.append(Failure(file.kind, number, text, f"took {took_s:.1f} s"))
        if error is not None:
            refused += 1
            if "\n" in error or len(error) > 4000:
                failures.append(Failure(file.kind, number, text, f"not a sentence: {error[:300]}"))
    return failures, refused, slowest_s


def mutated(file: ConfigurationFile, chance: random.Random) -> str:
    """The text of a file after one to six changes."""
    text = file.text
    for _ in range(chance.randint(1, 6)):
        text = _changed(file._replace(text=text), chance)
    return text


def _changed(file: ConfigurationFile, chance: random.Random) -> str:
    text = file.text
    lines = text.splitlines(keepends=True) or [""]
    place = chance.randrange(len(text) + 1)
    match chance.randrange(8):
        case 0:
            return text[:place] + chance.choice(_SNIPPETS) + text[place:]
        case 1:
            return text[:place] + text[place + chance.randint(1, 20) :]
        case 2:
            line = chance.randrange(len(lines))
            return "".join([*lines[:line], *lines[line + 1 :]])
        case 3:
            line = chance.randrange(len(lines))
            return "".join([*lines[:line], lines[line] * chance.randint(2, 4), *lines[line + 1 :]])
        case 4:
            chance.shuffle(lines)
            return "".join(lines)
        case 5:
            words = text.split(" ")
            words[chance.randrange(len(words))] = chance.choice(_SNIPPETS)
            return " ".join(words)
        case 6:
            other = chance.choice(FILES).text
            start = chance.randrange(len(other))
            return text[:place] + other[start : start + chance.randint(1, 80)] + text[place:]
        case _:
            made = typo(file, chance.choice(KINDS), chance)
            return text if made is None else made.text


if __name__ == "__main__":
    sys.exit(main())
