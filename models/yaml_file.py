"""YAML 1.2 files with strict rules: no key twice, bounded aliases, and the line of every key for errors."""

import re
from collections.abc import Hashable
from typing import Any, NamedTuple

import yaml

from sluice.models.errors import ConfigError

MAX_ALIASED = 100_000
"""Values of a document in which aliases are written out; one without aliases may be longer."""

_MOST_DIGITS = 100

_ERROR_CHARACTERS = 2000
"""The bound of an error, which may quote a long text."""
_ELEMENT = re.compile(r"\[?(\d{1,9})\]?(?:\.|$|(?=\[))")
_WORD = re.compile(r"\w+")
_BYTE_ORDER_MARK = "\ufeff"


class Lines:
    """The lines of a document's keys. Without a document no line is known."""

    def __init__(self, root: yaml.Node | None = None) -> None:
        self._root = root

    def line(self, at: str) -> int | None:
        """The line of the value at a place such as `stages.one.of.0` or `partitions[0].cores`.

        It is the line of its key, and of the innermost part that exists, for a value that is missing.
        """
        found = self._find(at)
        return None if found is None else found[0]

    def place(self, path: str, at: str, what: str = "") -> str:
        """The beginning of an error about the value at a place: the file, the line and the place.

        The line is that of the key that `what`, the text of the error, names first, if there is such a key.
        """
        return self.prefix(path, at, what) + (f" {at}:" if at else "")

    def error(self, path: str, at: str, what: str) -> ConfigError:
        """The error `what` about the value at a place; a long one is cut."""
        return ConfigError(f"{self.place(path, at, what)} {what:.{_ERROR_CHARACTERS}}")

    def prefix(self, path: str, at: str, what: str = "") -> str:
        """The file and the line of an error, with a colon; otherwise as `place`."""
        found = self._find(at)
        if found is None:
            return f"{path}:"
        line, node = found
        if isinstance(node, yaml.MappingNode):
            keys = {key.value: key for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
            named = next((keys[word] for word in _WORD.findall(what[:1000]) if word in keys), None)
            line = line if named is None else named.start_mark.line + 1
        return f"{path}:{line}:"

    def _find(self, at: str) -> tuple[int, yaml.Node] | None:
        if (node := self._root) is None:
            return None
        line, rest = node.start_mark.line + 1, at
        while rest:
            if isinstance(node, yaml.MappingNode):
                inner = [
                    (key, value)
                    for key, value in node.value
                    if isinstance(key, yaml.ScalarNode) and _begins_with(rest, key.value)
                ]
                if not inner:
                    break
                key, node = max(inner, key=lambda pair: len(pair[0].value))
                line, rest = key.start_mark.line + 1, rest[len(key.value) :].removeprefix(".")
            elif isinstance(node, yaml.SequenceNode):
                match = _ELEMENT.match(rest)
                if match is None or int(match[1]) >= len(node.value):
                    break
                node = node.value[int(match[1])]
                line, rest = node.start_mark.line + 1, rest[match.end() :]
            else:
                break
        return line, node


class YamlDocument(NamedTuple):
    """The value of a document, and its lines."""

    value: object
    lines: Lines


def load_yaml(text: str, path: str) -> YamlDocument:
    """The document in `text`; raises ConfigError, whose message starts with `path` and the line."""
    try:
        loader = _Loader(text.removeprefix(_BYTE_ORDER_MARK))
        try:
            root = loader.get_single_node()
            if root is None:
                return YamlDocument(None, Lines())
            _check_aliases(root)
            return YamlDocument(loader.construct_document(root), Lines(root))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = path if mark is None else f"{path}:{mark.line + 1}"
        raise ConfigError(f"{place}: not YAML: {_explained(error)}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{path}: not YAML: {error.reason} (character {error.position + 1})") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split()):.300}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not YAML: nested too deeply") from error


def _explained(error: yaml.MarkedYAMLError) -> str:
    problem, context = error.problem or "", error.context or ""
    if "'\\t'" in problem:
        return "a tab in the indentation or before a value; expected blanks"
    if "mapping values are not allowed" in problem:
        return "a key is not expected here; check the indentation of this line and of the one before"
    if "expected <block end>" in problem:
        return f"the indentation of this line matches no line above it; {problem}"
    return " ".join(f"{context}: {problem}".removeprefix(": ").split())


def _begins_with(place: str, key: str) -> bool:
    return place.startswith(key) and place[len(key) : len(key) + 1] in ("", ".", "[")


def _check_aliases(root: yaml.Node) -> None:
    """Raise ConstructorError if aliases refer to themselves, or make the document too large."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if (known := sizes.get(id(node))) is not None:
            return known
        if id(node) in open_nodes:
            raise _error("an alias refers to itself", node)
        open_nodes.add(id(node))
        if isinstance(node, yaml.MappingNode):
            total = 1 + sum(size(key) + size(value) for key, value in node.value)
        else:
            total = 1 + sum(map(size, node.value))
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        return total

    written = size(root)
    if written > MAX_ALIASED and written > _distinct(root):
        raise _error(f"with its aliases written out the document has more than {MAX_ALIASED} values", root)


def _distinct(root: yaml.Node) -> int:
    """The number of nodes, each counted once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return len(seen)


def _error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """A SafeLoader of the core schema of YAML 1.2, which refuses a repeated key.

    A second stage of the same name would silently replace the first. In YAML 1.1 a plain `off` is a boolean and `012`
    is ten; in YAML 1.2 they are a text and twelve. Merge keys (`<<`) are of YAML 1.1, and stay.
    """

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML declares it like this)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[tuple[str, str], int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key = key_node.tag, key_node.value
            if key in seen:
                raise _error(f"'{key_node.value:.80}' twice, first in line {seen[key]}", key_node)
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; constructors of PyYAML fail in many ways for a value that its tag does not allow."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            given = f": '{node.value:.40}'" if isinstance(node, yaml.ScalarNode) else ""
            raise _error(f"not of type {node.tag.rpartition(':')[2]:.40}{given}", node) from error

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """An integer of the core schema: decimal, `0o` or `0x`."""
        text = str(self.construct_scalar(node))
        if len(text) > _MOST_DIGITS:  # which Python may be unable to print
            raise _error(f"not an integer of at most {_MOST_DIGITS} digits: '{text:.40}'", node)
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)


for _tag, _form, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_form})$"), ["" if each == "\0" else each for each in _first]
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
