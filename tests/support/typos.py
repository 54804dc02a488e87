"""Typing errors as people make them, from a seed."""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.support.configuration_files import FILES, ConfigurationFile

_ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_WORD = re.compile(r"[A-Za-z_]{4,}")
_KEY = re.compile(r"^(\s*(?:- )?)([A-Za-z_]+):?")
_NUMBER = re.compile(r"(?<=[:\[ ] )[0-9.]+(?=[\],\s]|$)|(?<=: )[0-9.]+(?=[a-zA-Z]|$)")
_UNIT = re.compile(r"(?<=[0-9])(ms|us|s|MiB|GiB)$")


_LINE = re.compile(r"[\w/.]+:(\d+):")
_SUGGESTIONS = ("did you mean", "expected", "Expected", "indentation", "first in line", "multiple")


class Typo(NamedTuple):
    """A text with one typing error: its line, counted from 1, and what was there before."""

    kind: str
    text: str
    line: int
    meant: str


class RefusedTypo(NamedTuple):
    """A typing error in a file, and the error that a user sees."""

    file: str
    typo: Typo
    error: str

    @property
    def is_named(self) -> bool:
        """True if the error names the line, and says what was meant or expected.

        A wrong indentation, or a name that is used elsewhere, may be noticed in the line before or after. What was
        meant by a word is that word.
        """
        match = _LINE.match(self.error)
        is_near = match is not None and abs(int(match[1]) - self.typo.line) <= 1
        if self.typo.kind in _IN_WORDS and self.typo.meant not in self.error:
            return False
        return is_near and any(each in self.error for each in _SUGGESTIONS)


def _swap(word: str, chance: random.Random) -> str:
    places = [place for place in range(len(word) - 1) if word[place] != word[place + 1]]
    if not places:  # one letter again and again
        return word
    place = chance.choice(places)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _drop(word: str, chance: random.Random) -> str:
    place = chance.randrange(len(word))
    return word[:place] + word[place + 1 :]


def _double(word: str, chance: random.Random) -> str:
    place = chance.randrange(len(word))
    return word[:place] + word[place] + word[place:]


def _neighbour(word: str, chance: random.Random) -> str:
    places = [place for place, letter in enumerate(word) if any(letter.lower() in row for row in _ROWS)]
    if not places:
        return word
    place = chance.choice(places)
    letter = word[place]
    row = next(row for row in _ROWS if letter.lower() in row)
    at = row.index(letter.lower())
    other = row[at - 1] if at else row[at + 1]
    return word[:place] + (other.upper() if letter.isupper() else other) + word[place + 1 :]


_IN_WORDS: dict[str, Callable[[str, random.Random], str]] = {
    "swap": _swap,
    "drop": _drop,
    "double": _double,
    "neighbour": _neighbour,
}
_IN_LINES = ("indentation", "tab", "type", "unit", "twice")
KINDS = (*_IN_WORDS, *_IN_LINES)


def typo(file: ConfigurationFile, kind: str, chance: random.Random) -> Typo | None:
    """The file with a typing error of a kind; None if the file has no place for it."""
    lines = file.text.splitlines()
    numbers = list(range(len(lines)))
    chance.shuffle(numbers)
    for number in numbers:
        line = lines[number]
        found = _in_word(file, kind, line, chance) if kind in _IN_WORDS else _in_line(file, kind, line)
        if found is not None:
            changed, meant = found
            text = "\n".join([*lines[:number], *changed, *lines[number + 1 :]]) + "\n"
            return Typo(kind, text, number + len(changed), meant)
    return None


def _in_word(file: ConfigurationFile, kind: str, line: str, chance: random.Random) -> tuple[list[str], str] | None:
    matches = [match for match in _WORD.finditer(line) if match[0] not in file.chosen]
    if not matches:
        return None
    match = chance.choice(matches)
    wrong = _IN_WORDS[kind](match[0], chance)
    if wrong == match[0]:
        return None
    return [line[: match.start()] + wrong + line[match.end() :]], match[0]


def _in_line(file: ConfigurationFile, kind: str, line: str) -> tuple[list[str], str] | None:
    is_yaml = file.kind != "config.pbtxt"
    changed: list[str] | None = None
    if kind == "indentation" and is_yaml and line.startswith("  ") and not line.lstrip().startswith("- "):
        changed = [line[1:]]
    elif kind == "tab" and is_yaml and line.startswith("  "):
        changed = ["\t" + line[2:]]
    elif kind == "type" and (match := _NUMBER.search(line)):
        changed = [line[: match.start()] + "many" + line[match.end() :]]
    elif kind == "unit" and (match := _UNIT.search(line)):
        changed = [line[: match.start()] + {"ms": "msec", "us": "usec", "s": "secs"}.get(match[0], "MB")]
    elif kind == "twice" and re.fullmatch(r"\s*[a-z_]+: \S+", line):
        changed = [line, line]
    return None if changed is None else (changed, line.strip())


def refused_typos(count: int, seed: int) -> list[RefusedTypo]:
    """Typing errors that make a file wrong, of all kinds and in files of all kinds."""
    chance = random.Random(seed)
    found: list[RefusedTypo] = []
    number = 0
    while len(found) < count:
        file, kind = FILES[number % len(FILES)], KINDS[number // len(FILES) % len(KINDS)]
        number += 1
        made = typo(file, kind, chance)
        if made is not None and (error := file.error(made.text)) is not None:
            found.append(RefusedTypo(file.kind, made, error))
    return found
