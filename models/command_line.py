"""Command lines: options that the environment may give too, numbers with units, and suggestions for typing errors."""

import argparse
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from sluice.models.spelling import BOOLEANS, closest, did_you_mean
from sluice.models.units import unit_of

_CHOICE = re.compile(r"(?P<before>.*invalid choice: '?(?P<given>.*?)'? \(choose from (?P<choices>.*)\))", re.DOTALL)
_ARGUMENT = re.compile(r"argument (?P<options>\S+): ")
_SWITCHES = {**BOOLEANS, "true": True, "false": False, "1": True, "0": False, "": False}
_LINKS = ("tcp://", "udp://", "sctp://")
"""Kubernetes sets variables to such values for its services; one may have the name of an option's variable."""
_VERY_SIMILAR = 0.9
_LINES = "header"
"""The option whose values may hold commas."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest what was meant, and whose options may come from the environment.

    The variable of an option has the name of the program, the words of the command, and that of the option, in
    capitals. `plain` are commands whose words are left out, `shared` the options for which they always are.
    """

    usage_status = 2
    plain: Collection[tuple[str, ...]] = ()
    shared: Collection[str] = ()

    def group(self, title: str) -> argparse._ArgumentGroup:
        """The options that the help shows under a title; titles stand in the order of their first use."""
        known = (each for each in self._action_groups if each.title == title)
        return next(known, None) or self.add_argument_group(title)

    def error(self, message: str) -> NoReturn:
        """Exit with a sentence, and a suggestion where it is about a name that is similar to a known one.

        The usage is not printed: that of commands with many options would hide the sentence.
        """
        if match := _CHOICE.fullmatch(message):
            known = [each.strip("' ") for each in match["choices"].split(",")]
            message += did_you_mean(match["given"], known)
        environment: Mapping[str, str] = self.get_default("environment") or {}
        if match := _ARGUMENT.match(message):
            given = match["options"].split("/")
            for action in self._actions:
                if action.dest in environment and set(given) & set(action.option_strings):
                    message += f" (from the environment: {environment[action.dest]})"
        self.exit(self.usage_status, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")

    def parse(
        self, arguments: Sequence[str], environ: Mapping[str, str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse a command line; options that it lacks are read from the environment.

        They are added to `namespace`, if there is one. In it, `environment` is the variable of each option that came
        from there, by `dest`.
        """
        words, leaf = self.command(arguments)
        given = list(arguments)
        try:
            variables, found = leaf._from_environment(self._prefix(words), given, environ)
        except ValueError as error:
            leaf.error(str(error))
        leaf.set_defaults(environment=variables)
        for note in leaf._misspelt(self._prefix(words), environ):
            print(f"{self.prog}: {note}", file=sys.stderr)
        options, rest = self.parse_known_args([*words, *found, *given[len(words) :]], namespace)
        if rest:
            known = [name for action in leaf._actions for name in action.option_strings]
            hint = did_you_mean(rest[0].partition("=")[0], known) if rest[0].startswith("-") else ""
            leaf.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return options

    def command(self, arguments: Sequence[str]) -> tuple[list[str], "Parser"]:
        """The words of the command at the beginning of a command line, and its parser."""
        words: list[str] = []
        parser: Parser = self
        for word in arguments:
            commands = parser.commands()
            if word not in commands:
                break
            words.append(word)
            parser = commands[word]
        return words, parser

    def commands(self) -> Mapping[str, "Parser"]:
        """The commands of this parser; none for a command without actions."""
        found = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return found[0] if found else {}

    def options(self) -> list[argparse.Action]:
        """The options other than those that print a text and exit."""
        leaving = (argparse._HelpAction, argparse._VersionAction)
        return [each for each in self._actions if each.option_strings and not isinstance(each, leaving)]

    def arguments(self) -> list[argparse.Action]:
        """The arguments without an option, other than commands."""
        return [
            each
            for each in self._actions
            if not each.option_strings and not isinstance(each, argparse._SubParsersAction)
        ]

    def _prefix(self, words: Sequence[str]) -> Callable[[argparse.Action], str]:
        def variable(action: argparse.Action) -> str:
            option = action.option_strings[-1].lstrip("-")
            own = () if tuple(words) in self.plain or option in self.shared else words
            return "_".join((self.prog, *own, option)).replace("-", "_").upper()

        return variable

    def _from_environment(
        self, variable: Callable[[argparse.Action], str], given: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[dict[str, str], list[str]]:
        """The variables that are used, by `dest`, and the arguments that they stand for."""
        variables: dict[str, str] = {}
        arguments: list[str] = []
        for action in self.options():
            name = variable(action)
            text = environ.get(name)
            if text is None or text.startswith(_LINKS) or _is_given(action, given):
                continue
            option = action.option_strings[-1]
            if action.nargs == 0:
                if text.lower() not in _SWITCHES:
                    raise ValueError(f"{name}: expected true or false, got '{text:.80}'")
                if not _SWITCHES[text.lower()]:
                    continue
                arguments.append(option)
            else:
                arguments += [f"{option}={each}" for each in _values(action, text)]
            variables[action.dest] = name
        return variables, arguments

    def _misspelt(self, variable: Callable[[argparse.Action], str], environ: Mapping[str, str]) -> list[str]:
        """Notes on variables that have nearly the name of an option's; others with the prefix may be anyone's."""
        known = [variable(action) for action in self.options()]
        start = f"{self.prog.partition(' ')[0]}_".upper()
        unknown = [name for name in environ if name.startswith(start) and name not in known]
        return [
            f"the environment variable {name} has no effect; did you mean '{near}'?"
            for name in unknown
            if (near := closest(name, known, _VERY_SIMILAR))
        ]


def _is_given(action: argparse.Action, arguments: Sequence[str]) -> bool:
    """True if a command line has the option, written out or shortened."""
    names = [each.partition("=")[0] for each in arguments if each.startswith("-")]
    return any(
        option == name or (name.startswith("--") and len(name) > 2 and option.startswith(name))
        for option in action.option_strings
        for name in names
    )


def _values(action: argparse.Action, text: str) -> list[str]:
    if not isinstance(action, argparse._AppendAction):
        return [text]
    separator = "\n" if "\n" in text or action.dest == _LINES else ","
    return [each.strip() for each in text.split(separator) if each.strip()]


def add_connection_options(options: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of every client: TLS, and headers such as the key of a restricted group."""
    add = options.add_argument
    add("--cacert", default="", metavar="FILE", help="authorities to trust, in PEM (default: those of the system)")
    add("--cert", default="", metavar="FILE", help="certificate of the client, in PEM")
    add("--key", default="", metavar="FILE", help="key of the certificate, in PEM, if its file is another one")
    add(
        "--header",
        type=_header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header to send, such as the key of a restricted group (repeatable)",
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and len(name.split()) == 1 and text.isprintable() and text.isascii()):
        raise argparse.ArgumentTypeError(f"expected 'NAME: VALUE', got '{text}'")
    return name.strip(), value.strip()


def quantity(key: str, whole: bool = False) -> Callable[[str], Any]:
    """The type of an option whose value is a number in the unit of `key`, or one with its unit, such as `50ms`."""
    unit = unit_of(key)
    assert unit is not None, key

    def parse(text: str) -> float:
        try:
            number = float(text)  # with a sign, or `inf`: the setting says what is wrong with it
        except ValueError:
            try:
                number = float(unit.number(text))
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        if whole and not number.is_integer():
            raise argparse.ArgumentTypeError(f"expected a whole number of {unit.name}, got '{text:.80}'")
        return int(number) if whole else number

    return parse
