"""The page of the command line, from the argument parsers of the commands."""

import argparse
from collections.abc import Iterator

from scripts.reference.tables import code, paragraph, table
from sluice.gateway.cli.main import COMMANDS, build_parser
from sluice.loadgen.cli.main import build_parser as build_loadgen_parser


def command_line_page() -> str:
    """The text of docs/reference/cli.md."""
    sluice = build_parser(tuple(COMMANDS))
    parts = [_TITLE, paragraph(_INTRODUCTION)]
    parts.append(
        table(("Command", ""), [(f"[`sluice {name}`](#sluice-{name})", text) for name, text in COMMANDS.items()])
    )
    for program, parser in (("sluice", sluice), ("loadgen", build_loadgen_parser())):
        for name, command in subparsers(parser).items():
            parts += _sections(f"{program} {name}", command, _helps(parser)[name])
    return "\n\n".join(parts) + "\n"


def _sections(name: str, parser: argparse.ArgumentParser, text: str) -> Iterator[str]:
    """The section of a command that does what `text` says, and those of its actions."""
    yield f"## `{name}`" if name.count(" ") == 1 else f"### `{name}`"
    yield _sentence(text)
    if rows := [_row(action) for action in parser._actions if _is_argument(action)]:
        yield table(("Argument", "Meaning"), rows)
    for action, subparser in subparsers(parser).items():
        yield from _sections(f"{name} {action}", subparser, _helps(parser)[action])


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands, by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def _helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The help of a parser's commands, by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {choice.dest: choice.help or "" for action in actions for choice in action._choices_actions}


def _is_argument(action: argparse.Action) -> bool:
    return not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)


def _row(action: argparse.Action) -> tuple[str, str]:
    values = "" if action.nargs == 0 else str(action.metavar or (action.dest.upper() if action.choices is None else ""))
    if action.choices is not None and not action.metavar:
        values = ",".join(map(str, action.choices))
        values = f"{{{values}}}"
    if action.option_strings:
        name = f"{action.option_strings[-1]} {values}".rstrip()
    else:
        name = f"{values}..." if action.nargs in ("*", "+") else values
    if not action.help:
        raise ValueError(f"{name}: expected a help text")
    return code(name), _sentence(action.help % {"default": action.default, "prog": "sluice"})


def _sentence(text: str) -> str:
    first = text.partition(" ")[0].rstrip(",;:")
    return (text[:1].upper() + text[1:] if first.isalpha() else text) + ("" if text.endswith(".") else ".")


_TITLE = """# Command line

<!-- Written by `make reference` from the argument parsers in the code. -->"""

_INTRODUCTION = """`sluice COMMAND --help` prints the options of a command, `sluice --version` the version. A
command that cannot be carried out as given prints one sentence on standard error, with what was probably meant, and
exits with status 2. Options can be [environment variables](configuration.md#environment) too. `sluice completion SHELL`
prints a script that completes commands and options: `source <(sluice completion bash)`. `sluice
profile MODEL` is short for `sluice profile measure MODEL`. The commands of the [load
generator](../operate/loadgen/README.md), `loadgen`, come last."""
