"""The command `sluice`."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from sluice.gateway.config.server_config import ServerConfig
    from sluice.gateway.executors.triton.process import TritonProcess
    from sluice.mps.daemon.control import MpsControl

UNUSABLE = 2
"""Exit status when the command cannot be carried out as given."""
OUTPUT_CLOSED = 141
"""Exit status when nobody reads the output any more, as shells have it."""

_COMMANDS = {
    "validate": "check a model repository, or model files, without serving",
    "model": "list, load, unload or register models of a running server, or check them",
    "profile": "measure models on partitions; show, export and import profiles",
    "plan": "batch sizes and partitions that meet an objective at the least cost, and what else there is",
    "partitions": "list the partitions of this machine, or bring GPUs into the layout that a file describes",
    "doctor": "what a server would find on this machine, and what is wrong with it",
}
"""Commands that have a module `sluice.gateway.cli.<name>` of their own, and what they do."""
_PROFILE_ACTIONS = ("measure", "show", "export", "import")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    if sys.platform != "linux":
        print(
            f"sluice runs on Linux only (memfd, timerfd, processor affinity); this is {sys.platform}", file=sys.stderr
        )
        return UNUSABLE
    from sluice.models.errors import ServingError

    given = _spelled_out(sys.argv[1:] if arguments is None else arguments)
    options = _parser(given[0] if given else "").parse_args(given)
    try:
        status: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except (ServingError, OSError) as error:
        print(f"sluice: {error}", file=sys.stderr)
        return UNUSABLE
    return status


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `profile MODEL...` as the `profile measure MODEL...` that it is short for."""
    spelled = list(arguments)
    if spelled[:1] == ["profile"] and len(spelled) > 1 and spelled[1] not in (*_PROFILE_ACTIONS, "-h", "--help"):
        spelled.insert(1, "measure")
    return spelled


def _parser(command: str) -> argparse.ArgumentParser:
    """The command line, of which only `command` knows its arguments where those of others take long to import."""
    from sluice.gateway.version import server_version

    parser = argparse.ArgumentParser(prog="sluice", description="An inference serving gateway with adaptive batching.")
    parser.add_argument("--version", action="version", version=f"sluice {server_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    replay = commands.add_parser("replay", help="check that a journal leads to the same decisions again")
    replay.set_defaults(command=_replay)
    replay.add_argument("journal", type=Path, metavar="JOURNAL")
    why = commands.add_parser("why", help="tell what took a request of a running server its time")
    why.set_defaults(command=_why)
    why.add_argument("request", metavar="REQUEST_ID", help="its id, or the one in the header x-sluice-request")
    if command == "why":
        from sluice.gateway.cli.http_client import add_server_arguments

        add_server_arguments(why)
    why.add_argument("--json", action="store_true", help="all figures, for programs")
    for name, text in _COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=text)
        if name == command:
            import_module(f"sluice.gateway.cli.{name}").add_arguments(subparser)
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="serve a model repository, or model files by themselves")
    serve.set_defaults(command=_serve)
    serve.add_argument("files", nargs="*", type=Path, metavar="MODEL", help="a model file, e.g. mlp.onnx")
    serve.add_argument(
        "--repository", action="append", metavar="DIR", help="a model repository in Triton's layout (may be repeated)"
    )
    serve.add_argument("--control", choices=["none", "explicit", "poll"], help="what changes the models (default none)")
    serve.add_argument(
        "--load-model",
        action="append",
        metavar="NAME",
        help="for control explicit: what to begin with (may be repeated)",
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML; options here override it")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--http-port", type=int, metavar="PORT", help="0 takes a free one (default 8000)")
    serve.add_argument("--grpc-port", type=int, metavar="PORT", help="0 takes a free one (default 8001)")
    serve.add_argument("--partitions", type=int, metavar="N", help="equal sets of cores (default: one for each core)")
    serve.add_argument("--policy", choices=["deadline", "timeout", "none"], help="batch policy (default deadline)")
    serve.add_argument("--objective", choices=["latency", "cost"], help="of policy deadline (default latency)")
    serve.add_argument("--max-delay-ms", type=float, metavar="MS", help="for policy timeout (default 0)")
    serve.add_argument("--preferred", type=_sizes, metavar="N,N", help="preferred batch sizes, for policy timeout")
    serve.add_argument("--max-batch-size", type=int, metavar="N", help="for models with a batch dimension (default 64)")
    serve.add_argument("--default-slo-ms", type=float, metavar="MS", help="for requests without one (default 10000)")
    serve.add_argument("--drain-timeout-s", type=float, metavar="S", help="time for requests at the end (default 30)")
    serve.add_argument("--cache-bytes", type=int, metavar="N", help="for answers of models with response_cache (0)")
    serve.add_argument(
        "--allow-client-shm", action="store_true", default=None, help="let clients pass tensors in shared memory"
    )
    serve.add_argument("--journal", type=Path, metavar="FILE", help="a new file for every event and decision")
    serve.add_argument("--ready-file", type=Path, metavar="FILE", help="written as JSON (ports, pid) when ready")
    serve.add_argument("--log-format", choices=["text", "json"], default="text")
    serve.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _serve(options: argparse.Namespace) -> int:
    from sluice.gateway.config.configured_partitions import configured_partitions
    from sluice.gateway.config.server_config import Control
    from sluice.gateway.executors.triton.process import launched
    from sluice.gateway.observability.logs import LogFormat, configure
    from sluice.gateway.partitions.mps_daemons import mps_daemons
    from sluice.models.errors import ConfigError

    config = _config(options)
    if config.repositories and options.files:
        raise ConfigError("expected either --repository DIR or model files")
    if not config.repositories and not options.files and not config.triton and config.control is not Control.EXPLICIT:
        raise ConfigError(
            "expected --repository DIR, model files, a triton server in the configuration, or --control explicit, "
            "for models that clients register"
        )
    configure(LogFormat(options.log_format), options.log_level)
    with mps_daemons(configured_partitions(config)) as mps, launched(config.triton) as processes:
        return _serve_with(mps, processes, config, options)


def _serve_with(
    mps: "Mapping[str, MpsControl]",
    processes: "Mapping[str, TritonProcess]",
    config: "ServerConfig",
    options: argparse.Namespace,
) -> int:
    """Serve while the MPS daemons and the Triton servers run that we have launched."""
    import asyncio
    from contextlib import ExitStack

    import uvloop

    from sluice.gateway.config.server_config import Control
    from sluice.gateway.deployment.read import find_triton_models, read_models
    from sluice.gateway.server.wiring import build_server
    from sluice.models.errors import ConfigError

    triton = find_triton_models(config, processes)
    repository = read_models(config.repositories, options.files, config, triton)
    if not repository.models and config.control is Control.NONE:
        reasons = "".join(f"\n  {each.reason}" for each in repository.broken)
        raise ConfigError(f"there is no model that can be served{reasons}")

    async def serve() -> int:
        with ExitStack() as stack:
            journal = None
            if options.journal is not None:
                journal = _open_new(options.journal)
                stack.callback(_close, journal)
            try:
                server = build_server(config, repository, journal, triton, processes, mps)
            except BaseException:
                # Nothing has been recorded, and the file would be in the way of the next attempt.
                if options.journal is not None and options.journal.is_file():
                    options.journal.unlink()
                raise
            return await server.run(options.ready_file)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


def _open_new(path: Path) -> BinaryIO:
    """A journal to write: a file that is not there yet, or a device or pipe that is."""
    from sluice.models.errors import ConfigError

    try:
        return path.open("wb" if path.exists() and not path.is_file() else "xb")
    except FileExistsError as error:
        raise ConfigError(f"the journal {path} exists already; move it away or name another file") from error


def _close(journal: BinaryIO) -> None:
    """Close a journal; one that a full disk has cut short is no failure of the server."""
    try:
        journal.close()
    except OSError as error:
        print(f"sluice: the journal {journal.name} is incomplete: {error}", file=sys.stderr)


def _config(options: argparse.Namespace) -> "ServerConfig":
    """The file's settings, overridden by the options given."""
    import msgspec

    from sluice.gateway.config.server_config import ServerConfig, convert_config, read_config

    config = ServerConfig() if options.config is None else read_config(options.config)
    settings: dict[str, Any] = msgspec.to_builtins(config)
    if options.load_model is not None:
        settings["load_models"] = options.load_model
    for name in (
        "repository",
        "control",
        "host",
        "http_port",
        "grpc_port",
        "partitions",
        "max_batch_size",
        "default_slo_ms",
        "drain_timeout_s",
        "allow_client_shm",
        "cache_bytes",
    ):
        if (value := getattr(options, name)) is not None:
            settings[name] = value
    if options.policy is not None:
        settings["policy"] = {"name": options.policy}
    if options.objective is not None:
        settings["policy"]["objective"] = options.objective
    if options.max_delay_ms is not None:
        settings["policy"]["max_delay_ms"] = options.max_delay_ms
    if options.preferred is not None:
        settings["policy"]["preferred"] = options.preferred
    return convert_config(settings, "command line")


def _replay(options: argparse.Namespace) -> int:
    from itertools import count

    import msgspec

    from sluice.batcher.drivers.journal import replay
    from sluice.batcher.planner.live import LivePlanner
    from sluice.models.errors import ConfigError

    read = count()
    try:
        with options.journal.open("rb") as lines:
            difference = replay((line for line, _ in zip(lines, read, strict=False)), LivePlanner())
    except OSError as error:
        raise ConfigError(f"{options.journal}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{options.journal}: {error}") from error
    if difference is None:
        # The first line is the spec.
        print(f"{options.journal}: the same decisions in {next(read) - 1} steps")
        return 0
    print(f"{options.journal}: line {difference.line}: the decisions differ")
    print(f"recorded: {msgspec.json.encode(difference.step).decode()}")
    print(f"replayed: {msgspec.json.encode(difference.decisions).decode()}")
    return 1


def _why(options: argparse.Namespace) -> int:
    from sluice.gateway.cli.why import fetch, table

    body, explanation = fetch(options.url, options.request, options.header)
    print(body if options.json else table(explanation))
    return 0


if __name__ == "__main__":
    sys.exit(main())
