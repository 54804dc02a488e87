"""Errors about files, for tests that are not about their lines."""

import re

_LINE = re.compile(r"(?<=\w):\d+(?=: )")


def without_line(error: object) -> str:
    """The text of an error without the line after the name of a file."""
    return _LINE.sub("", str(error), count=1)
