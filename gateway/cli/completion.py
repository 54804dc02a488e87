"""`sluice completion`: prints a script by which a shell completes commands, options and their choices."""

import argparse
import shlex
from collections.abc import Iterator

from sluice.models.command_line import Parser

SHELLS = ("bash", "zsh", "fish")

_DEFAULT_ACTION = "measure"
"""`sluice profile MODEL` is short for `sluice profile measure MODEL`."""

_BASH = """# Completion of {program} for bash: source this file, or put it where bash reads completions.
_{program}() {{
    local word command="" cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$command $word" in
            {commands}) command="$command $word" ;;
            *) break ;;
        esac
    done
    case "$command $prev" in
{choices}
    esac
    if [ -z "$words" ]; then
        case "$command" in
{options}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}}
complete -o filenames -F _{program} {program}
"""
_ZSH = """#compdef {program}
# Completion of {program} for zsh: source this file, or put it as _{program} into a folder of $fpath.
_{program}() {{
    local word command="" prev="${{words[CURRENT-1]}}" found=""
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$command $word" in
            {commands}) command="$command $word" ;;
            *) break ;;
        esac
    done
    case "$command $prev" in
{choices}
    esac
    if [[ -z "$found" ]]; then
        case "$command" in
{options}
        esac
    fi
    compadd -- ${{=found}} || _files
}}
if [[ "$funcstack[1]" = "_{program}" ]]; then
    _{program} "$@"
else
    (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
    compdef _{program} {program}
fi
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, which needs `whole_parser`, a function that returns that of all commands."""
    parser.set_defaults(command=_completion)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def _completion(options: argparse.Namespace) -> int:
    print(completion_script(options.whole_parser(), options.shell), end="")
    return 0


def completion_script(parser: Parser, shell: str) -> str:
    """The script for a shell, of all commands of a parser."""
    if shell == "fish":
        return _fish(parser)
    return _by_cases(parser, _ZSH, "found") if shell == "zsh" else _by_cases(parser, _BASH, "words")


def _by_cases(parser: Parser, template: str, variable: str) -> str:
    """A script with a case for each command and for each option with choices, which set the variable."""
    found = list(_commands(parser))
    choices, options = [], []
    for words, command in found:
        at = "".join(f" {word}" for word in words)
        flags = [name for each in _options(command) for name in each.option_strings]
        names = [*command.commands(), *_choices(command), *flags]
        options.append(f'            "{at}") {variable}="{" ".join(names)}" ;;')
        for action in _options(command):
            if action.choices:
                patterns = "|".join(f'"{at} {name}"' for name in action.option_strings)
                choices.append(f'        {patterns}) {variable}="{" ".join(map(str, action.choices))}" ;;')
    commands = "|".join(f'"{"".join(f" {word}" for word in words)}"' for words, _ in found if words)
    return template.format(
        program=parser.prog, commands=commands, choices="\n".join(choices), options="\n".join(options)
    )


def _fish(parser: Parser) -> str:
    lines = [f"# Completion of {parser.prog} for fish: put this file into ~/.config/fish/completions."]
    for words, command in _commands(parser):
        seen = [f"__fish_seen_subcommand_from {word}" for word in words]
        deeper = " ".join(command.commands())
        if deeper:
            seen.append(f"not __fish_seen_subcommand_from {deeper}")
        condition = f" -n {shlex.quote('; and '.join(seen))}" if seen else ""
        lines += [
            f"complete -c {parser.prog}{condition} -f -a {name} -d {_fish_text(each.description)}"
            for name, each in command.commands().items()
        ]
        lines += [f"complete -c {parser.prog}{condition} -f -a {name}" for name in _choices(command)]
        for action in _options(command):
            flags = " ".join(f"-l {name[2:]}" for name in action.option_strings if name.startswith("--"))
            takes = "" if action.nargs == 0 else " -r"
            values = f" -f -a {shlex.quote(' '.join(map(str, action.choices)))}" if action.choices else ""
            lines.append(f"complete -c {parser.prog}{condition} {flags}{takes}{values} -d {_fish_text(action.help)}")
    return "\n".join(lines) + "\n"


def _fish_text(text: str | None) -> str:
    return shlex.quote((text or "").replace("%%", "%"))


def _options(command: Parser) -> list[argparse.Action]:
    """The options of a command, and of the action that is meant where none is named."""
    action = command.commands().get(_DEFAULT_ACTION)
    return [*command.options(), *(action.options() if action is not None else ())]


def _choices(command: Parser) -> list[str]:
    """The texts that an argument without an option may be."""
    return [str(choice) for each in command.arguments() for choice in each.choices or ()]


def _commands(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """All commands with their words, the program itself first."""
    yield words, parser
    for word, command in parser.commands().items():
        yield from _commands(command, (*words, word))
