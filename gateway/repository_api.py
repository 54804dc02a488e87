"""The model repository as clients see and change it."""

from collections.abc import Mapping

import msgspec

from gateway.catalogue import Catalogue, ModelState
from models.errors import BackendUnavailable, UnsupportedRequest


class IndexEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a model or pipeline; without `version` all that is there under the name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class RepositoryApi:
    """Tells what is in the repository. Nothing can be loaded or unloaded: all models are, from the start."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def index(self, repository: str, ready_only: bool) -> list[IndexEntry]:
        """Everything that is known, or just what is ready. `repository` must be "", as the others' must."""
        _check(repository)
        return [
            IndexEntry(name, version, state, reason)
            for name in self._catalogue.names()
            for version, state, reason in self._catalogue.states(name)
            if state is ModelState.READY or not ready_only
        ]

    def load(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        """Load a model, or load it again."""
        _check(repository)
        raise _not_allowed("load", name)

    def unload(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        """Unload a model."""
        _check(repository)
        raise _not_allowed("unload", name)


def _check(repository: str) -> None:
    if repository:
        raise UnsupportedRequest("'repository_name' specification is not supported")


def _not_allowed(what: str, name: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"failed to {what} '{name:.80}', explicit model load / unload is not allowed if polling is enabled or the "
        "model control mode is none, which it is"
    )
