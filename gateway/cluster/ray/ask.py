"""Questions to a Ray cluster, each by a process of its own, since Ray ends processes that use it."""

import subprocess
import sys
from collections.abc import Mapping

import msgspec

from sluice.gateway.cluster.ray.placement import Node
from sluice.gateway.cluster.ray.reach import answers
from sluice.models.errors import ConfigError
from sluice.models.processes import module_environment

TIMEOUT_S = 30.0
"""The time for an answer."""


def cluster_nodes(address: str, environment: Mapping[str, str] = {}) -> tuple[Node, ...]:
    """The nodes of a cluster. `environment` has more variables for Ray. Raises ConfigError if it does not answer."""
    return msgspec.json.decode(_ask("found", (address,), environment, TIMEOUT_S), type=tuple[Node, ...])


def report(
    address: str,
    namespace: str,
    *action: str,
    environment: Mapping[str, str] = {},
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """The contents of a namespace, as JSON, after an action (see `sluice.gateway.cluster.ray.report`).

    Raises ConfigError if the cluster does not answer, or the action is not possible.
    """
    return _ask("report", (address, namespace, *action), environment, timeout_s)


def _ask(program: str, arguments: tuple[str, ...], environment: Mapping[str, str], timeout_s: float) -> bytes:
    if not answers(arguments[0]):
        raise ConfigError(f"ray: no cluster at {arguments[0]}: nothing listens there")
    command = [sys.executable, "-P", "-m", f"sluice.gateway.cluster.ray.{program}", *arguments]
    variables = {**module_environment(), **environment}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ray: no answer of the cluster at {arguments[0]} in {timeout_s:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise ConfigError(f"ray: cluster at {arguments[0]}: {lines[-1]:.300}")
    return done.stdout
