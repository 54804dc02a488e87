"""Typing errors in all kinds of files are named with their line, and with what was probably meant.

`python -m scripts.count_typos` prints them.
"""

import pytest

from tests.support.configuration_files import FILES, ConfigurationFile
from tests.support.typos import refused_typos


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.kind)
def test_every_file_is_right_without_typing_errors(file: ConfigurationFile) -> None:
    assert file.error(file.text) is None


@pytest.mark.parametrize("seed", range(8))
def test_of_fifty_typing_errors_at_least_45_are_named_with_line_and_suggestion(seed: int) -> None:
    unnamed = [each for each in refused_typos(50, seed) if not each.is_named]
    assert len(unnamed) <= 5, "\n".join(map(str, unnamed))
