"""Converts documents to structs: numbers with units, words for booleans, and errors that name line and place."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from sluice.models.errors import ConfigError
from sluice.models.spelling import BOOLEANS, closest, did_you_mean
from sluice.models.units import Unit, unit_of
from sluice.models.yaml_file import Lines

_T = TypeVar("_T", bound=msgspec.Struct)
StructsOf = Callable[[type], Collection[type[msgspec.Struct]]]
"""The structs that a type which only a `dec_hook` knows may be."""

NO_LINES = Lines()

_PLACE = re.compile(r"(?P<what>.*) - at (?P<key>`key` in )?`\$(?P<where>.*)`", re.DOTALL)
_STEP = re.compile(r"[\w-]+|\[[^]]*\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)`", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value '(?P<given>.*?)'", re.DOTALL)
_NUMBER_EXPECTED = re.compile(r"Expected `(int|float)[^`]*`, got `str`")
_TRUTH = ("true", "false")
_MOST_DEEP = 6


def _no_structs(form: type) -> Collection[type[msgspec.Struct]]:
    return ()


def convert(
    value: object,
    form: type[_T],
    path: str,
    at: str = "",
    *,
    lines: Lines = NO_LINES,
    dec_hook: Callable[[type, Any], Any] | None = None,
    structs_of: StructsOf = _no_structs,
) -> _T:
    """Convert `value`, found at `at` of a document with these `lines`, to `form`.

    A number may be a text with its unit if the name of its key ends in one (`slo_ms: 2s`), and a boolean one of the
    words `BOOLEANS`. Raises ConfigError, whose message starts with `path`, the line and the place.
    """
    return _Conversion(form, path, at, lines, dec_hook, structs_of).convert(value)


class _Conversion(Generic[_T]):
    """One conversion: what is known of the form while a value is changed or an error is explained."""

    def __init__(
        self,
        form: type[_T],
        path: str,
        at: str,
        lines: Lines,
        dec_hook: Callable[[type, Any], Any] | None,
        structs_of: StructsOf,
    ) -> None:
        self._form = form
        self._path = path
        self._at = at
        self._lines = lines
        self._dec_hook = dec_hook
        self._structs_of = structs_of

    def convert(self, value: object) -> _T:
        plain = self._plain(value, [_type_info(self._form)], "", self._at)
        try:
            return msgspec.convert(plain, self._form, dec_hook=self._dec_hook)
        except msgspec.ValidationError as error:
            raise self._explained(plain, str(error)) from error

    def _plain(self, value: object, forms: list[inspect.Type], key: str, at: str) -> object:
        """The value with numbers for texts with units, and booleans for their words."""
        if isinstance(value, dict):
            return {
                name: self._plain(each, self._inner(forms, name), self._unit_key(key, forms, name), _joined(at, name))
                for name, each in value.items()
            }
        if isinstance(value, list):
            inner = [each for form in forms for each in self._inside(form, "[0]")]
            return [self._plain(each, inner, key, f"{at}[{index}]") for index, each in enumerate(value)]
        if not isinstance(value, str) or any(isinstance(form, inspect.StrType) for form in forms):
            return value
        if any(isinstance(form, inspect.BoolType) for form in forms):
            return BOOLEANS.get(value.lower(), value)
        if any(isinstance(form, inspect.IntType | inspect.FloatType) for form in forms):
            return self._number(value, forms, key, at)
        return value

    def _number(self, text: str, forms: list[inspect.Type], key: str, at: str) -> object:
        if not text.strip()[:1].isdecimal():
            return text
        if (unit := unit_of(key)) is None:
            return _without_underscores(text)
        try:
            number = unit.number(text)
        except ValueError as error:
            raise self._error(at, str(error)) from error
        if isinstance(number, float) and not any(isinstance(form, inspect.FloatType) for form in forms):
            raise self._error(at, f"expected a whole number of {unit.name}, got '{text:.80}' ({number:g})")
        return number

    def _inner(self, forms: list[inspect.Type], name: object) -> list[inspect.Type]:
        return [each for form in forms for each in self._inside(form, str(name))]

    @staticmethod
    def _unit_key(key: str, forms: list[inspect.Type], name: object) -> str:
        """The key whose name has the unit: that of a struct, or of the mapping for names that users choose."""
        return key if any(isinstance(form, inspect.DictType) for form in forms) else str(name)

    def _explained(self, value: object, message: str) -> ConfigError:
        """The error of msgspec, with its place and a suggestion."""
        what, where, is_key = _located(message)
        if is_key:
            what = f"{what} as a name; put it in quotes"
        forms = [_type_info(self._form)]
        for step in _STEP.findall(where):
            forms = [inner for each in forms for inner in self._inside(each, step)]
        where = self._with_keys(value, where, message)
        at = _joined(self._at, where)
        if match := _UNKNOWN.search(what):
            return self._unknown(what, match["name"], forms, at)
        if what.startswith("Invalid") and (choices := _choices(forms)):
            what = f"{what}; expected {' or '.join(choices)}"
            if match := _ENUM.match(what):
                what += did_you_mean(match["given"], choices)
        elif (unit := self._unit_at(where)) and _NUMBER_EXPECTED.fullmatch(what):
            what = f"{what}; expected a number of {unit.name}, or one with its unit such as {unit.example}"
        elif what == "Expected `bool`, got `str`":
            given = _value_at(value, where)
            what += f" '{given:.80}'; expected true or false{did_you_mean(str(given), _TRUTH)}"
        elif match := re.fullmatch(r"Object missing required field `(\w+)`", what):
            what += self._misspelt(value, where, match[1])
        return self._error(at, what)

    def _unknown(self, what: str, name: str, forms: list[inspect.Type], at: str) -> ConfigError:
        """The error for an unknown key: the keys that are known here, and a similar one or its right place."""
        fields = list(dict.fromkeys(_fields(forms)))
        if fields and "; expected" not in what:
            what = f"{what}; expected {', '.join(fields)}"
        if hint := did_you_mean(name, fields):
            what += hint
        elif elsewhere := [each for each in self._places(name) if _joined(self._at, each) != _joined(at, name)]:
            what += f"; did you mean '{elsewhere[0]}'? Check the indentation"
        line = self._lines.prefix(self._path, _joined(at, name))
        return ConfigError(f"{line} {at}: {what}" if at else f"{line} {what}")

    def _misspelt(self, value: object, where: str, missing: str) -> str:
        """A hint for a missing key where a similar one is given, which is not known to be wrong."""
        found = _value_at(value, where)
        given = [str(each) for each in found] if isinstance(found, dict) else []
        near = closest(missing, [each for each in given if each != missing])
        return "" if near is None else f"; '{near}' is given"

    def _unit_at(self, where: str) -> Unit | None:
        names = [step for step in _STEP.findall(where) if not step.startswith("[")]
        return unit_of(names[-1]) if names else None

    def _places(self, name: str) -> list[str]:
        """Where the form has a key of that name, the outermost place first; not inside mappings and lists."""
        found: list[str] = []
        level: list[tuple[str, inspect.Type]] = [("", _type_info(self._form))]
        for _ in range(_MOST_DEEP):
            deeper: list[tuple[str, inspect.Type]] = []
            for place, form in level:
                for field in _struct_fields(form):
                    if field.encode_name == name:
                        found.append(_joined(place, name))
                    deeper += [(_joined(place, field.encode_name), each) for each in _bare(field.type)]
            level = deeper
        return found

    def _inside(self, form: inspect.Type, step: str) -> Iterator[inspect.Type]:
        """The types one step further: of a field of a struct, or of an element or a value (`[0]`, `[...]`)."""
        inner: list[inspect.Type] = []
        match form:
            case inspect.StructType():
                inner = [field.type for field in form.fields if field.encode_name == step]
                if step == form.tag_field:
                    inner = [inspect.LiteralType((form.tag,))]
            case inspect.CustomType():
                forms = [_type_info(each) for each in self._structs_of(form.cls)]
                inner = [found for each in forms for found in self._inside(each, step)]
            case inspect.DictType():
                inner = [form.value_type]
            case inspect.VarTupleType() | inspect.ListType():
                inner = [form.item_type]
        for each in inner:
            yield from _bare(each)

    def _with_keys(self, document: object, where: str, message: str) -> str:
        """A place in a document with the keys of mappings, for which msgspec only has `[...]`.

        The key is the one that leads to the same message when it is alone in its mapping.
        """
        before, dots, after = where.partition("[...]")
        steps = before.split(".") if before else []
        mapping = document
        for step in steps:
            mapping = mapping.get(step) if isinstance(mapping, dict) else None
        if not dots or not isinstance(mapping, dict):
            return where
        for key, value in mapping.items():
            alone: object = {key: value}
            for depth in reversed(range(len(steps))):
                outer: Any = document
                for step in steps[:depth]:
                    outer = outer[step]
                alone = {**outer, steps[depth]: alone}
            try:
                msgspec.convert(alone, self._form, dec_hook=self._dec_hook)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return f"{before}.{key}{after}"
        return where

    def _error(self, at: str, what: str) -> ConfigError:
        return self._lines.error(self._path, at, what)


def _located(message: str) -> tuple[str, str, bool]:
    """A message of msgspec without its place, the place, and True if it is about a key.

    An error inside a value that a `dec_hook` converts has two places.
    """
    where, is_key = "", False
    while match := _PLACE.fullmatch(message):
        message, where, is_key = match["what"], where + match["where"], bool(match["key"])
    return message, where.lstrip("."), is_key


def _value_at(value: Any, where: str) -> object:
    for step in _STEP.findall(where):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step[1:-1].isdecimal() and int(step[1:-1]) < len(value):
            value = value[int(step[1:-1])]
        else:
            return None
    return value


def _without_underscores(text: str) -> object:
    """A number that is written as in YAML 1.1, such as `1_000`; any other text stays."""
    return int(text.replace("_", "")) if re.fullmatch(r"[0-9]{1,18}(_[0-9]{1,18}){1,4}", text) else text


@cache
def _type_info(form: type) -> inspect.Type:
    return inspect.type_info(form)


def _struct_fields(form: inspect.Type) -> tuple[inspect.Field, ...]:
    return form.fields if isinstance(form, inspect.StructType) else ()


def _fields(forms: Iterable[inspect.Type]) -> list[str]:
    return [field.encode_name for form in forms for field in _struct_fields(form)]


def _choices(forms: Iterable[inspect.Type]) -> list[str]:
    """The texts that are allowed at a place, if only some are."""
    enums = (tuple(form.cls) for form in forms if isinstance(form, inspect.EnumType))
    literals = (form.values for form in forms if isinstance(form, inspect.LiteralType))
    return [str(choice) for choices in (*enums, *literals) for choice in choices]


def _bare(form: inspect.Type) -> tuple[inspect.Type, ...]:
    """The types of a union, without annotations."""
    bare = form.type if isinstance(form, inspect.Metadata) else form
    return bare.types if isinstance(bare, inspect.UnionType) else (bare,)


def _joined(at: str, where: object) -> str:
    text = str(where)
    return f"{at}{text}" if text.startswith("[") else ".".join(part for part in (at, text) if part)
