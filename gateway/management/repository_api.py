"""The repository extension: the index of models, and loading and unloading them."""

import re
from collections.abc import Mapping

import msgspec

from sluice.gateway.config.server_config import ModelControlMode
from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.override import read_override
from sluice.gateway.deployment.registry import ModelRegistry, VersionStatus
from sluice.models.errors import RejectedError, RequestError, ServingError, UnsupportedRequest
from sluice.models.regular_file import printable
from sluice.models.repository.names import is_foreign, why_foreign


class IndexEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a model or pipeline; without `version`, everything under the name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class RepositoryApi:
    """The repository for clients. In the control mode `explicit` they load and unload models through `deployer`.

    The files that they give may be code only with `allow_upload`.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        deployer: Deployer | None = None,
        control: ModelControlMode = ModelControlMode.NONE,
        *,
        allow_upload: bool = False,
    ) -> None:
        self._registry = registry
        self._deployer = deployer
        self._control = control
        self._allow_upload = allow_upload

    @property
    def changes(self) -> bool:
        """True if clients may load and unload models."""
        return self._control is ModelControlMode.EXPLICIT

    def index(self, repository: str, ready_only: bool) -> list[IndexEntry]:
        """All known models, or only the ready ones; a model that was never loaded is a name alone.

        `repository` must be "", here and in the other methods.
        """
        _check(repository)
        entries = [
            IndexEntry(name, version, state, reason)
            for name in self._registry.names()
            for version, state, reason in self._registry.states(name)
            if state is VersionStatus.READY or not ready_only
        ]
        if self._deployer is None or self._control is ModelControlMode.NONE or ready_only:
            return entries
        try:
            names = {printable(name): name for name in self._deployer.source.names()}
        except OSError:  # what is served stays
            names = {}
        found = [_not_loaded(shown, name) for shown, name in names.items() if shown not in self._registry]
        return sorted([*entries, *found], key=lambda entry: entry.name)

    async def load(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        """Load a model or pipeline, again if it is loaded already; returns when it is ready."""
        _check(repository)
        if self._deployer is None or not self.changes:
            raise _not_allowed("load", name, self._control)
        _check_name("load", name)
        await self._deployer.load(name, read_override(parameters, allows_code=self._allow_upload), always=True)

    async def unload(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        """Unload a model or pipeline; it gets no more requests."""
        _check(repository)
        if self._deployer is None or not self.changes:
            raise _not_allowed("unload", name, self._control)
        _check_name("unload", name)
        for each, value in parameters.items():
            if each not in _UNLOAD_PARAMETERS:
                known = " and ".join(f"'{known}'" for known in _UNLOAD_PARAMETERS)
                raise RequestError(f"parameter '{each:.80}' is unknown; expected {known}")
            if not isinstance(value, bool):
                raise RequestError(f"parameter '{each}' must be true or false, got {value!r:.80}")
        with_dependencies, recycle = (bool(parameters.get(each)) for each in _UNLOAD_PARAMETERS)
        await self._deployer.unload(name, with_dependencies=with_dependencies, recycle=recycle)

    async def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model or pipeline is ready; False for one that is not known."""
        try:
            return await self._registry.says_ready(name, version)
        except ServingError:
            return False


_UNLOAD_PARAMETERS = ("unload_dependents", "recycle")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")


def _not_loaded(shown: str, name: str) -> IndexEntry:
    if is_foreign(name):
        return IndexEntry(shown, "", VersionStatus.UNAVAILABLE, why_foreign(name))
    return IndexEntry(shown)


def _check(repository: str) -> None:
    if repository:
        raise UnsupportedRequest("'repository_name' specification is not supported")


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name[0] == ".":
        expected = "up to 255 letters, digits, '_', '-' and '.', which is not the first"
        raise RequestError(f"failed to {what} '{name:.80}': expected the name of a model: {expected}")


def _not_allowed(what: str, name: str, control: ModelControlMode) -> RejectedError:
    return RejectedError(
        f"failed to {what} '{name:.80}', explicit model load / unload is not allowed if polling is enabled or the "
        f"model control mode is none; it is {control}",
        retry_after_s=None,
    )
