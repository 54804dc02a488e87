"""The command `sluice`: one table of commands, each in a module of its own."""

import os
import sys
from collections.abc import Collection, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace

    from sluice.models.command_line import Parser

UNUSABLE = 2
"""Exit status when the command cannot be carried out as given."""
OUTPUT_CLOSED = 141
"""Exit status when the reader of the output has closed it, as shells define it."""

COMMANDS = {
    "init": "write a model repository from one or two model files, of two as a cascade",
    "serve": "serve a model repository, or single model files",
    "worker": "serve the worker of one partition to a gateway on this machine or another one",
    "infer": "send one inference request to a running server, and print the outputs",
    "replay": "check that a journal leads to the same decisions again",
    "health": "exit with 0 if a running server is ready, else with 1",
    "top": "watch a running server: requests, pipelines, partitions and troubles",
    "why": "show where a request spent its time",
    "validate": "check a model repository, or single model files, without serving",
    "model": "list, load, unload or register the models of a running server",
    "profile": "measure models on partitions; show, export and import profiles",
    "plan": "find the cheapest batch sizes and partitions that meet a latency objective",
    "partitions": "list, plan, change and watch the partitions of this machine",
    "deploy": "measure, plan and serve what a file names, within an objective and at a rate",
    "ray": "start and end a Ray cluster on this machine with a gateway; show and replace the workers of any",
    "doctor": "check this machine for everything a server needs",
    "config": "check and show the settings of a server; print the schemas of its files",
    "completion": "print a script that completes commands and options in a shell",
}
"""The commands and their help. Each is a module `sluice.gateway.cli.<name>` with a function `add_arguments`."""
_PLAIN = (("serve",), ("config", "check"), ("config", "show"), ("doctor",), ("plan",), ("partitions", "list"))
"""Commands whose name is not part of the variables of their options: they have those of `serve`."""
_SHARED = ("url", "header", "cacert", "cert", "key")
"""Options whose variables are the same for all commands."""
_PROFILE_ACTIONS = ("measure", "show", "export", "import")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    if sys.platform != "linux":
        print(
            f"sluice runs on Linux only (memfd, timerfd, processor affinity); this is {sys.platform}", file=sys.stderr
        )
        return UNUSABLE
    _open_standard_streams()
    given = _spelled_out(sys.argv[1:] if arguments is None else arguments)
    if given[:1] != ["serve"]:
        return _run(given)
    from sluice.gateway.server.process_one import go_on_as_child
    from sluice.gateway.server.signals import ServerSignals

    with ServerSignals() as signals:  # before anything that takes time: process 1 of a container has no other
        if (status := go_on_as_child()) is not None:
            return status
        from argparse import Namespace

        return _run(given, Namespace(signals=signals))


def _run(given: Sequence[str], options: "Namespace | None" = None) -> int:
    """Carry out a command line; returns the exit status. `options` is what the command gets besides its arguments."""
    from sluice.models.errors import ServingError

    try:
        options = build_parser(given[:1]).parse(given, os.environ, options)
        status: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        return OUTPUT_CLOSED
    except (ServingError, OSError) as error:
        print(f"sluice: {error}", file=sys.stderr)
        return UNUSABLE
    finally:
        _drop_unwritten()
    return status


def _drop_unwritten() -> None:
    """Drop what the standard streams cannot write, as on a full disk: Python would end with a status of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_standard_streams() -> None:
    """Open those of the three standard streams that were closed, or other files would get their numbers."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """Expand the short form `profile MODEL...` to `profile measure MODEL...`."""
    spelled = list(arguments)
    if spelled[:1] == ["profile"] and len(spelled) > 1 and spelled[1] not in (*_PROFILE_ACTIONS, "-h", "--help"):
        spelled.insert(1, "measure")
    return spelled


def build_parser(complete: Collection[str]) -> "Parser":
    """The parser of the command line; only the commands in `complete` have their arguments.

    The module of a command is imported for its arguments, and some import large libraries.
    """
    from sluice.gateway.version import server_version
    from sluice.models.command_line import Parser

    parser = Parser(prog="sluice", description="An inference serving gateway with adaptive batching.")
    parser.plain, parser.shared = _PLAIN, _SHARED
    parser.add_argument("--version", action="version", version=f"sluice {server_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=text)
        if name in complete:
            import_module(f"sluice.gateway.cli.{name}").add_arguments(subparser)
            subparser.set_defaults(whole_parser=partial(build_parser, tuple(COMMANDS)))
    return parser


if __name__ == "__main__":
    sys.exit(main())
