"""Lines and suggestions for errors about a `config.pbtxt`: which line sets the field that an error is about."""

import re
from collections.abc import Iterable

from sluice.models.spelling import closest, did_you_mean

_MOST_CHARACTERS = 1 << 20
_QUOTED = re.compile(r"'([^'\n]{1,200})'")
_FIELD = re.compile(r"[A-Za-z_]+")
_NO_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>\w+)"')
_NO_VALUE = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)')


def with_line(message: str, path: str, text: str) -> str:
    """A message that begins with `path` and a field, with the line of that field in the file's `text`.

    The message stays as it is if the file does not set the field.
    """
    start = f"{path}: "
    if not message.startswith(start) or len(text) > _MOST_CHARACTERS:
        return message
    place, _, what = message.removeprefix(start).partition(": ")
    if not _FIELD.match(place):
        return message
    found = _line(text, place, what)
    return message if found is None else f"{path}:{found}: {message.removeprefix(start)}"


def _line(text: str, place: str, what: str) -> int | None:
    """The line of the field at a place such as `input 'x'` or `version_policy.latest.num_versions`.

    It is that of the innermost field that the text has after the outer ones.
    """
    code = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)
    position: int | None = None
    names = [*_FIELD.findall(_QUOTED.sub("", place)), *_FIELD.findall(what.partition(":")[0])[:1]]
    for name in names:
        match = re.compile(rf"\b{name}\b\s*[:{{\[<]").search(code, position or 0)
        if match is not None:
            position = match.start()
    if position is None:
        return None
    for value in _QUOTED.findall(place):
        if (found := code.find(f'"{value}"', position)) >= 0:
            position = found
    return text.count("\n", 0, position) + 1


def suggestion(message: str, fields: Iterable[str], values: Iterable[str]) -> str:
    """The end of an error of the parser about an unknown field or value of a type with these names, or a number."""
    if match := _NO_FIELD.search(message):
        return did_you_mean(match["name"], fields)
    if match := _NO_VALUE.search(message):
        near = closest(match["name"], values)
        return "" if near is None else f"; did you mean {near}?"
    if "Couldn't parse integer" in message:
        return "; expected a whole number"
    return ""


def unknown_type(message: str) -> str:
    """The full name of the type that an error of the parser is about; "" for other errors."""
    match = _NO_FIELD.search(message) or _NO_VALUE.search(message)
    return "" if match is None else match["type"]
