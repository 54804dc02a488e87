"""Typing errors in all kinds of files are named with their line, and with what was probably meant."""

import random
import re

import pytest

from tests.support.configuration_files import FILES, ConfigurationFile
from tests.support.typos import KINDS, Typo, typo

_EXPLAINED = ("did you mean", "expected", "Expected", "indentation", "first in line", "multiple")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.kind)
def test_every_file_is_right_without_typing_errors(file: ConfigurationFile) -> None:
    assert file.error(file.text) is None


def _typos(count: int, seed: int) -> list[tuple[ConfigurationFile, Typo]]:
    """Typing errors that make a file wrong, of all kinds and in files of all kinds."""
    chance = random.Random(seed)
    found: list[tuple[ConfigurationFile, Typo]] = []
    number = 0
    while len(found) < count:
        file, kind = FILES[number % len(FILES)], KINDS[number // len(FILES) % len(KINDS)]
        number += 1
        made = typo(file, kind, chance)
        if made is not None and file.error(made.text) is not None:
            found.append((file, made))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_of_fifty_typing_errors_at_least_45_are_named_with_line_and_suggestion(seed: int) -> None:
    unnamed = []
    for file, made in _typos(50, seed):
        error = file.error(made.text) or ""
        line = re.match(r"[\w/.]+:(\d+):", error)
        # A wrong indentation, or a name that is used elsewhere, may be noticed in another line.
        near = line is not None and abs(int(line[1]) - made.line) <= 1
        explained = any(each in error for each in _EXPLAINED)
        is_word = made.kind in ("swap", "drop", "double", "neighbour")
        if not near or not explained or (is_word and made.meant not in error):
            unnamed.append((file.kind, made.kind, made.line, made.meant, error))
    assert len(unnamed) <= 5, "\n".join(map(str, unnamed))
