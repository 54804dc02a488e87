"""The file of `sluice deploy`: what is to be served, at which rate, within which latency."""

import math
from pathlib import Path
from typing import Any

import msgspec

from sluice.gateway.config.server_config import ServerConfig, convert_config, read_document
from sluice.models.conversion import convert
from sluice.models.errors import ConfigError
from sluice.models.sources.source import is_url
from sluice.models.yaml_file import Lines

_OWN = ("repository", "partitions", "default_slo_ms")
"""Settings of a server that the file has keys of its own for, or that are planned."""


class PipelineLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load of a pipeline: requests of one row a second, and the shares of its rows that conditional stages run."""

    rate: float | None = None
    escalation: dict[str, float] = {}


class DeployKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the file; docs/operate/planning.md describes them."""

    repository: str
    objective_ms: float
    rate: float
    pipelines: dict[str, PipelineLoad] = {}
    partitions: Any = None
    settings: dict[str, Any] = {}


class DeployFile(msgspec.Struct, frozen=True):
    """A checked file; `config` are its settings as those of a server, and `document` the same as they are written."""

    repository: Path
    objective_ms: float
    rate: float
    pipelines: dict[str, PipelineLoad]
    config: ServerConfig
    document: dict[str, Any]

    @property
    def chooses_partitions(self) -> bool:
        """True if the file leaves the partitions to the plan."""
        return self.config.local_partitions is None


def read_deploy_file(path: Path) -> DeployFile:
    """Read a file; its repository is relative to it. Raises ConfigError, which names the file, the line and the key."""
    document, lines = read_document(path)
    keys = convert(document, DeployKeys, str(path), lines=lines)
    _check_numbers(keys, path, lines)
    if is_url(keys.repository):
        raise lines.error(
            str(path), "repository", f"expected a directory, in which profiles are stored, got '{keys.repository}'"
        )
    for key in keys.settings:
        if key in _OWN:
            instead = "objective_ms" if key == "default_slo_ms" else key
            raise lines.error(str(path), f"settings.{key}", f"expected it as the key '{instead}' of the file")
    repository = (path.absolute().parent / keys.repository).resolve()
    settings = {**keys.settings, "repository": str(repository), "default_slo_ms": keys.objective_ms}
    if keys.partitions is not None:
        settings["partitions"] = keys.partitions
    try:
        config = convert_config(settings, str(path))
    except ConfigError as error:
        raise ConfigError(f"{error} (among the settings of the server)") from error
    return DeployFile(repository, keys.objective_ms, keys.rate, keys.pipelines, config, settings)


def _check_numbers(keys: DeployKeys, path: Path, lines: Lines) -> None:
    if not 0 < keys.objective_ms < math.inf:
        raise lines.error(str(path), "objective_ms", f"expected milliseconds above 0, got {keys.objective_ms:g}")
    rates = {"rate": keys.rate, **{f"pipelines.{name}.rate": each.rate for name, each in keys.pipelines.items()}}
    for place, rate in rates.items():
        if rate is not None and not 0 < rate < math.inf:
            raise lines.error(str(path), place, f"expected requests per second above 0, got {rate:g}")
    for name, each in keys.pipelines.items():
        for stage, share in each.escalation.items():
            if not 0 <= share <= 1:
                place = f"pipelines.{name}.escalation.{stage}"
                raise lines.error(str(path), place, f"expected a share from 0 to 1, got {share:g}")
