"""Names that were probably mistyped, and the words for true and false."""

import difflib
from collections.abc import Iterable

BOOLEANS = {"yes": True, "no": False, "on": True, "off": False}
"""Words that YAML 1.2 reads as texts, and that settings which are booleans take as well."""

_CUTOFF = 0.6
_MOST_CHARACTERS = 64
"""Longer names are not compared: the time grows with the product of both lengths."""


def closest(name: str, known: Iterable[str], similarity: float = _CUTOFF) -> str | None:
    """The known name that is most similar to `name`, regardless of case; None if none is similar.

    `similarity` is in [0, 1], where 1 means equal.
    """
    if len(name) > _MOST_CHARACTERS:
        return None
    candidates = {each.lower(): each for each in known if len(each) <= _MOST_CHARACTERS}
    found = difflib.get_close_matches(name.lower(), candidates, 1, similarity)
    return candidates[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; "" if no known name is similar."""
    found = closest(name, known)
    return "" if found is None else f"; did you mean '{found}'?"
