"""Suggestions for names that were probably mistyped."""

import difflib
from collections.abc import Iterable

_CUTOFF = 0.6
_MOST_CHARACTERS = 64
"""Longer names are not compared: the time grows with the product of both lengths."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to `name`, regardless of case; None if none is similar."""
    if len(name) > _MOST_CHARACTERS:
        return None
    candidates = {each.lower(): each for each in known if len(each) <= _MOST_CHARACTERS}
    found = difflib.get_close_matches(name.lower(), candidates, 1, _CUTOFF)
    return candidates[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; "" if no known name is similar."""
    found = closest(name, known)
    return "" if found is None else f"; did you mean '{found}'?"
