"""`sluice serve`: runs a server until it is stopped."""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sluice.gateway.config.server_config import ServerConfig
    from sluice.gateway.executors.triton.process import TritonProcess
    from sluice.gateway.observability.journal_file import JournalFile
    from sluice.models.yaml_file import Lines
    from sluice.mps.daemon.control import MpsControl

logger = logging.getLogger(__name__)

_SAME_NAME = (
    "repository",
    "control",
    "host",
    "http_port",
    "grpc_port",
    "metrics_port",
    "metrics_interval_ms",
    "partitions",
    "max_batch_size",
    "default_slo_ms",
    "drain_delay_s",
    "drain_timeout_s",
    "allow_client_shm",
    "client_shm_prefix",
    "allow_upload",
    "cache_bytes",
)
"""Options that override the configuration key of the same name."""
_DIRECTORY = "DIR"
"""The origin of a repository that is named without an option."""
_LISTS = {"load_models": "load_model", "open_groups": "open_group", "allowed_hosts": "allowed_host"}
"""Repeatable options by the key that they override."""
_TRACE_KEYS: dict[str, tuple[tuple[str, ...], bool]] = {
    "mode": (("mode",), False),
    "level": (("level",), False),
    "rate": (("rate",), True),
    "count": (("count",), True),
    "triton,file": (("file",), False),
    "triton,log-frequency": (("log_frequency",), True),
    "opentelemetry,url": (("opentelemetry", "endpoint"), False),
    "opentelemetry,bsp_max_queue_size": (("opentelemetry", "queue_spans"), True),
}
"""The keys below `trace`, and whether the value is a number, by the names of Triton's `--trace-config`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command; libraries that serving needs are imported when it runs."""
    from sluice.batcher.policies.deadline import Objective
    from sluice.batcher.policies.registry import DEFAULT, batch_policies
    from sluice.models.command_line import quantity

    parser.set_defaults(command=_serve)
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="MODEL|DIR",
        help="a model file, such as mlp.onnx, or a directory or URL, which is a --repository",
    )
    add(
        "--repository",
        action="append",
        metavar="DIR",
        help="a model repository in Triton's layout: a directory, or a URL such as s3://bucket/models (repeatable)",
    )
    add("--control", choices=["none", "explicit", "poll"], help="model control mode (default none)")
    add(
        "--load-model",
        action="append",
        metavar="NAME",
        help="with --control explicit: a model to load at the start, * for all (repeatable)",
    )
    add("--config", type=Path, metavar="FILE", help="settings in YAML; options given here override them")
    add("--host", help="address to listen on (default 127.0.0.1)")
    add("--http-port", type=int, metavar="PORT", help="port for HTTP; 0 takes a free one (default 8000)")
    add("--grpc-port", type=int, metavar="PORT", help="port for gRPC; 0 takes a free one (default 8001)")
    add(
        "--metrics-port", type=int, metavar="PORT", help="a further port for metrics; 0 takes a free one (default none)"
    )
    add(
        "--metrics-interval-ms",
        type=quantity("_ms"),
        metavar="MS",
        help="least time between two readings of the machine for metrics (default 2000)",
    )
    add(
        "--metrics-config",
        action="append",
        type=_metrics_setting,
        metavar="NAME=VALUE",
        help="a setting of Triton's metrics of latencies, such as summary_latencies=true (repeatable)",
    )
    add(
        "--partitions",
        type=_partitions,
        metavar="N",
        help="number of equal core sets (default: one for each core that the cgroup allows), or auto for the GPUs and "
        "MIG instances that the process was given, if there are any",
    )
    add("--policy", choices=list(batch_policies()), help=f"batch policy (default {DEFAULT})")
    add("--objective", choices=list(Objective), help="objective of the deadline policy (default latency)")
    add(
        "--max-delay-ms",
        type=quantity("_ms"),
        metavar="MS",
        help="max_delay_ms of the policy, if it has that key (timeout: default 0)",
    )
    add("--preferred", type=_sizes, metavar="N,N", help="preferred batch sizes of the timeout policy")
    add("--max-batch-size", type=int, metavar="N", help="largest batch of models with a batch dimension (default 64)")
    add(
        "--default-slo-ms",
        type=quantity("_ms"),
        metavar="MS",
        help="deadline of requests that set none (default 10000)",
    )
    add(
        "--drain-delay-s",
        type=quantity("_s"),
        metavar="S",
        help="time to go on serving, but not ready, when the server is to stop (default 0)",
    )
    add(
        "--drain-timeout-s",
        type=quantity("_s"),
        metavar="S",
        help="time from the signal to stop until open requests are given up (default 30)",
    )
    add(
        "--cache-bytes",
        type=quantity("_bytes", whole=True),
        metavar="N",
        help="size of the response cache (default 0, no cache)",
    )
    add(
        "--allow-client-shm",
        action="store_true",
        default=None,
        help="let clients pass tensors in system shared memory",
    )
    add("--client-shm-prefix", metavar="TEXT", help="the beginning of the names of system shared memory for clients")
    add(
        "--allow-upload",
        action="store_true",
        default=None,
        help="let clients upload Python models, that is, run code as the user of the server",
    )
    add(
        "--open-group",
        action="append",
        metavar="GROUP",
        help="leave a management group open although host is not the loopback (repeatable)",
    )
    add(
        "--allowed-host", action="append", metavar="NAME", help="a further name of this server in requests (repeatable)"
    )
    add(
        "--cors-origin",
        action="append",
        metavar="ORIGIN",
        help="an origin whose pages may ask for inference (repeatable)",
    )
    add(
        "--trace-config",
        action="append",
        metavar="[MODE,]KEY=VALUE",
        help="a setting of traces as Triton has it, such as mode=opentelemetry, opentelemetry,url=URL, "
        "triton,file=FILE or rate=100 (repeatable)",
    )
    add("--journal", type=Path, metavar="FILE", help="record every event and decision in a new file")
    add("--ready-file", type=Path, metavar="FILE", help="write the ports and process id here, as JSON, when ready")
    add("--log-file", type=Path, metavar="FILE", help="append log lines to this file; SIGUSR1 opens it again")
    add("--log-format", choices=["text", "json"], default="text", help="format of log lines (default text)")
    add(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="lowest level that is logged (default info)",
    )


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected sizes such as 4,8, got '{text:.80}'") from None


def _partitions(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or auto, got '{text:.80}'") from None


def _metrics_setting(text: str) -> tuple[str, bool | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got '{text:.80}'")
    return name, {"true": True, "false": False}.get(value.lower(), value)


def _serve(options: argparse.Namespace) -> int:
    from sluice.gateway.cluster.ray.settle import with_ray_settled
    from sluice.gateway.config.configured_partitions import configured_partitions
    from sluice.gateway.config.contradictions import contradictions
    from sluice.gateway.config.server_config import ModelControlMode
    from sluice.gateway.executors.triton.process import launched
    from sluice.gateway.observability.logs import LogFormat, configure, log
    from sluice.gateway.partitions.mps_daemons import mps_daemons
    from sluice.models.errors import ConfigError
    from sluice.mps.partitions.cpu import check_partitions
    from sluice.mps.partitions.partition import MpsPartition

    config = effective_config(options).config
    files = model_files(options)
    if config.repositories and files:
        raise ConfigError("expected either --repository DIR or model files")
    if not config.repositories and not files and not config.triton and config.control is not ModelControlMode.EXPLICIT:
        raise ConfigError(
            "expected --repository DIR, model files, a triton server in the configuration, or --control explicit, "
            "for models that clients register"
        )
    configure(LogFormat(options.log_format), options.log_level, options.log_file)
    config = with_ray_settled(config)
    partitions = configured_partitions(config)
    check_partitions(partitions)
    for warning in contradictions(config):
        logger.warning(warning.text, extra={"fields": {"place": warning.place}})

    if config.triton or any(isinstance(each, MpsPartition) for each in partitions):
        options.signals.unwind()
    try:
        with mps_daemons(partitions) as mps, launched(config.triton) as processes:
            return _serve_with(mps, processes, config, files, options)
    except SystemExit:
        log(logger, logging.INFO, "server stopped before it was started")
        raise


def _serve_with(
    mps: "Mapping[str, MpsControl]",
    processes: "Mapping[str, TritonProcess]",
    config: "ServerConfig",
    files: Sequence[Path],
    options: argparse.Namespace,
) -> int:
    """Serve while the launched MPS daemons and Triton servers run."""
    import asyncio
    from contextlib import ExitStack
    from functools import partial

    import msgspec
    import uvloop

    from sluice.gateway.cli.progress import sampled
    from sluice.gateway.config.server_config import ModelControlMode
    from sluice.gateway.deployment.read import fetch_sources, find_triton_models, read_models
    from sluice.gateway.observability.journal_file import JournalFile
    from sluice.gateway.server.wiring import build_server
    from sluice.models.errors import ConfigError

    triton = find_triton_models(config, processes)
    fetch_sources(config, triton, partial(sampled, "copying models", in_bytes=True))
    repository = read_models(config.repositories, files, config, triton)
    if not repository.models and config.control is ModelControlMode.NONE:
        reasons = "".join(f"\n  {each.reason}" for each in repository.broken)
        if config.repositories and not reasons:
            reasons = f": nothing is in {', '.join(map(str, (*config.directories, *config.sources)))}"
        raise ConfigError(f"no model can be served{reasons}")

    given = effective_config(options).config.partitions

    def read_again() -> "ServerConfig":
        again = effective_config(options).config
        # What the settings leave to a Ray cluster stays as it was at the start.
        return msgspec.structs.replace(again, partitions=config.partitions) if again.partitions == given else again

    async def serve() -> int:
        with ExitStack() as stack:
            if options.journal is not None:
                options.signals.unwind()
            journal = None if options.journal is None else JournalFile(options.journal)
            try:
                write = None if journal is None else journal.write
                server = build_server(config, repository, write, triton, processes, mps, read_again)
            except BaseException:
                if journal is not None:
                    journal.discard()
                raise
            if journal is not None:
                stack.callback(_close, journal)
            stack.enter_context(sampled("loading models", server.start_progress))
            return await server.run(options.ready_file, options.signals)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


def _close(journal: "JournalFile") -> None:
    """Close a journal; a journal that a full disk cut short does not fail the server."""
    try:
        journal.close()
    except OSError as error:
        print(f"sluice: the journal {journal.path} is incomplete: {error}", file=sys.stderr)


class EffectiveConfig(NamedTuple):
    """The settings of a server, the document that they were read from, and the options that replace some of it.

    `given` leads from a key to the option, or the variable of the environment, that its value comes from.
    """

    config: "ServerConfig"
    document: object
    lines: "Lines"
    given: Mapping[str, str]


def model_files(options: argparse.Namespace) -> list[Path]:
    """The model files that the command names, without repositories.

    Raises ConfigError for a missing one, and for a file of settings in their place.
    """
    from sluice.models.errors import ConfigError

    files = [Path(place) for place in options.files if not _is_repository(place)]
    for path in files:
        expected = "expected a model file, or a model repository"
        if not path.exists():
            raise ConfigError(f"{path}: no such file or directory; {expected}")
        if path.suffix in {".yaml", ".yml"}:
            raise ConfigError(f"{path}: {expected}; a file of settings is given with --config")
    return files


def trace_settings(entries: Sequence[str]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The keys below `trace`, and the values, of settings that are written as for Triton's `--trace-config`.

    Raises ConfigError for one that is malformed or unknown.
    """
    from sluice.models.errors import ConfigError

    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"--trace-config: expected KEY=VALUE or MODE,KEY=VALUE, got '{entry:.80}'")
        if name == "opentelemetry,resource":
            key, equals, value = value.partition("=")
            if not (key and equals):
                raise ConfigError(f"--trace-config: {name}: expected KEY=VALUE, got '{entry.partition('=')[2]:.80}'")
            yield ("opentelemetry", "resource", key), value
            continue
        if name not in _TRACE_KEYS:
            expected = ", ".join([*_TRACE_KEYS, "opentelemetry,resource"])
            raise ConfigError(f"--trace-config: expected one of {expected}, got '{name:.80}'")
        keys, is_number = _TRACE_KEYS[name]
        if is_number and not value.removeprefix("-").isdecimal():
            raise ConfigError(f"--trace-config: {name}: expected a whole number, got '{value:.80}'")
        if name == "opentelemetry,url" and "://" not in value:
            value = f"http://{value}"
        yield keys, int(value) if is_number else value


def _is_repository(place: str) -> bool:
    """True for a directory or a URL, which is no path: a path has `/` for `//`."""
    from sluice.models.sources.source import is_url

    return is_url(place) or Path(place).is_dir()


def effective_config(options: argparse.Namespace) -> EffectiveConfig:
    """Read the configuration file and override it with the options of `sluice serve`."""
    import msgspec

    from sluice.gateway.config.server_config import ServerConfig, convert_config, read_document
    from sluice.models.conversion import NO_LINES
    from sluice.models.errors import ConfigError

    document, lines = (None, NO_LINES) if options.config is None else read_document(options.config)
    config = ServerConfig() if options.config is None else convert_config(document, str(options.config), lines)
    settings: dict[str, Any] = msgspec.to_builtins(config)
    given: dict[str, str] = {}

    def override(value: object, dest: str, *keys: str) -> None:
        if value is None:
            return
        inner = settings
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        option = f"--{dest.replace('_', '-')}"
        given[".".join(keys)] = options.environment.get(dest, option)

    for key, dest in _LISTS.items():
        override(getattr(options, dest), dest, key)
    override(options.cors_origin, "cors_origin", "cors", "origins")
    for name, value in options.metrics_config or ():
        override(value, "metrics_config", "metrics_config", name)
    for name in _SAME_NAME:
        # Of partitions, the option means those of this machine.
        inner = ("local",) if name == "partitions" and isinstance(settings[name], dict) else ()
        override(getattr(options, name), name, name, *inner)
    if repositories := [place for place in options.files if _is_repository(place)]:
        if options.repository is not None and "repository" not in options.environment:
            raise ConfigError(
                f"expected the repository as {repositories[0]} or as --repository {options.repository[0]}, got both"
            )
        settings["repository"], given["repository"] = repositories, _DIRECTORY
    for keys, value in trace_settings(options.trace_config or ()):
        override(value, "trace_config", "trace", *keys)
    override(None if options.policy is None else {"name": options.policy}, "policy", "policy")
    override(options.objective, "objective", "policy", "objective")
    override(options.max_delay_ms, "max_delay_ms", "policy", "max_delay_ms")
    override(options.preferred, "preferred", "policy", "preferred")
    if not given:
        return EffectiveConfig(config, document, lines, given)
    place = "command line" if not options.environment else "command line and environment"
    return EffectiveConfig(convert_config(settings, place), document, lines, given)
