"""The models and pipelines that clients may name, and the status of each version and of the server."""

import enum
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sluice.gateway.partitions.inventory import Inventory, InventoryChange
from sluice.models.errors import BackendUnavailable, ModelNotFound, RequestError, UnsupportedRequest, VersionNotFound
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.repository.names import is_foreign
from sluice.models.repository.scan import BrokenEntry

UNLOADED = "unloaded"
"""The reason of versions that a client has unloaded."""


class VersionStatus(enum.StrEnum):
    """The status of a version of a model or pipeline, as the repository index shows it."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class _Entry:
    """The definition of one name: `versions` that are served, and others that are not, with the reasons.

    "" in `unavailable` stands for all versions. They are `unreadable` if their files could not be read when the
    server began, `unsupported` if they are of a kind that is not served, and `foreign` if they are no models at all.
    """

    versions: dict[int, Pipeline] = field(default_factory=dict)
    unavailable: dict[str, tuple[VersionStatus, str]] = field(default_factory=dict)
    unreadable: bool = False
    unsupported: bool = False
    foreign: bool = False


class ModelRegistry:
    """Holds the definitions of pipelines, single models included; the inventory decides whether they are ready.

    A pipeline is served once some partition has loaded a model for each of its stages, or will load it on demand. A
    broken pipeline, or one with a stage whose models no partition could load, stays known with the reason. A `strict`
    server is not ready while anything is broken or loading.
    """

    def __init__(
        self,
        server_version: str,
        pipelines: Iterable[Pipeline],
        broken: Iterable[BrokenEntry],
        inventory: Inventory,
        *,
        strict: bool = False,
    ) -> None:
        self.server_name = "sluice"
        self.server_version = server_version
        self.live = True
        self.draining = False
        self._strict = strict
        self._inventory = inventory
        self._entries: dict[str, _Entry] = {}
        for pipeline in pipelines:
            self._entries.setdefault(pipeline.name, _Entry()).versions[pipeline.version] = pipeline
        for each in broken:
            entry = self._entries.setdefault(each.name, _Entry())
            version = "" if each.version is None else str(each.version)
            entry.unavailable[version] = VersionStatus.UNAVAILABLE, each.reason
            entry.unreadable = True
            entry.foreign |= each.foreign
            entry.unsupported |= each.unsupported
        self._waiting: set[str] = set()  # models that get requests before any partition has loaded them
        self._on_demand: set[str] = set()  # waiting models that count as ready while a partition is up
        self._unplaced: dict[str, str] = {}  # models that no partition has room for, with the reasons
        self._serving: dict[tuple[str, str], Pipeline] = {}  # by name and version, "" for the latest
        self._subscribers: list[Callable[[], None]] = []
        self.ask_model: Callable[[str], Awaitable[bool]] = _unasked
        """Asks a model, by key, whether it is ready by its own account."""
        inventory.subscribe(self._changed)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def start_draining(self) -> None:
        """Record that the server is stopping: nothing is ready from now on."""
        self.draining = True
        self._report()

    @property
    def serving(self) -> Mapping[tuple[str, str], Pipeline]:
        """The pipelines that get requests, by name and version, "" for the latest; a new object at each change."""
        return self._serving

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when `serving` is another one, or the server begins to stop."""
        self._subscribers.append(changed)

    # -- definitions

    def serve(self, name: str, pipelines: Iterable[Pipeline]) -> None:
        """Serve pipelines, whose models are loaded, under a name, in place of its previous pipelines."""
        self._entries[name] = _Entry({pipeline.version: pipeline for pipeline in pipelines})
        self._find_serving()

    def set_unavailable(
        self, name: str, states: Mapping[str, tuple[VersionStatus, str]], *, unsupported: bool = False
    ) -> None:
        """Serve nothing under a name; `states` has the status of its versions, and the reason.

        Without any, the name is not known any more. It is `unsupported` if it is of a kind that is not served.
        """
        before = self._entries.pop(name, None)
        if states:
            self._entries[name] = _Entry(unavailable=dict(states), unsupported=unsupported)
        if before is not None and before.versions:
            self._find_serving()

    def forget(self, name: str) -> None:
        """Drop a name under which nothing could be read or loaded; otherwise nothing happens."""
        entry = self._entries.get(name)
        if entry is not None and not entry.versions and (entry.unreadable or "" in entry.unavailable):
            del self._entries[name]

    def list_foreign(self, reasons: Mapping[str, str]) -> None:
        """Know these names as no models, with the reasons, and no others of that kind."""
        for name in [name for name in self._entries if is_foreign(name) and name not in reasons]:
            del self._entries[name]
        for name, reason in reasons.items():
            unavailable = {"": (VersionStatus.UNAVAILABLE, reason)}
            self._entries[name] = _Entry(unavailable=unavailable, unreadable=True, foreign=True)

    def mark_waiting(self, model: str) -> None:
        """Accept requests for a model that is not loaded at the start: they cause its load."""
        self._waiting.add(model)
        self._find_serving()

    def mark_on_demand(self, models: Iterable[str]) -> None:
        """Count models as ready while a partition is up: requests cause their load."""
        self._on_demand.update(models)
        self._waiting |= self._on_demand
        self._find_serving()

    def mark_unplaced(self, model: str, reason: str) -> None:
        """Record that no partition has room for a model."""
        self._unplaced[model] = reason
        self._find_serving()

    def forget_model(self, model: str) -> None:
        """Drop a model that no pipeline needs any more."""
        self._waiting.discard(model)
        self._on_demand.discard(model)
        self._unplaced.pop(model, None)

    # -- what is served

    def pipeline(self, name: str, version: str) -> Pipeline:
        """The pipeline of that name; version "" stands for the latest that did not fail to load everywhere.

        Raises ModelNotFound, VersionNotFound, UnsupportedRequest for one of a kind that is not served, or
        BackendUnavailable for one that is known but broken or still loading.
        """
        serving = self._serving.get((name, version))
        if serving is not None:
            return serving
        pipeline = self._find(name, version)
        raise BackendUnavailable(f"{name!r} cannot be served: {self._why_unavailable(pipeline)}")

    def names(self) -> list[str]:
        """All names, including broken models and pipelines."""
        return sorted(self._entries)

    def only_name(self) -> str:
        """The only name that gets requests, or the only one that is known. Raises RequestError if there are others."""
        names = self.serving_names() or self.names()
        if len(names) != 1:
            known = f"this one has {', '.join(names):.200}" if names else "this one has none"
            raise RequestError(
                "a request that names no model needs a server of one model, or default_model in its configuration: "
                + known
            )
        return names[0]

    def serving_names(self) -> list[str]:
        """The names that get requests."""
        return sorted({name for name, _ in self._serving})

    def caching(self) -> list[str]:
        """The names whose responses may be cached."""
        entries = self._entries.items()
        return sorted(
            name for name, entry in entries if any(pipeline.response_cache for pipeline in entry.versions.values())
        )

    def versions(self, name: str) -> list[str]:
        """The versions of a pipeline, ascending; empty when nothing of that name could be read."""
        return [str(version) for version in sorted(self._versions(name))]

    def served(self, name: str) -> list[str]:
        """The versions of a pipeline that have been loaded, ascending."""
        return [version for version in self.versions(name) if (name, version) in self._serving]

    # -- readiness

    def states(self, name: str) -> list[tuple[str, VersionStatus, str]]:
        """Every version of a name ("" for all that could not be read), its status, and why it is not ready."""
        versions = self._versions(name)
        states = [(str(version), *self._status(versions[version])) for version in sorted(versions)]
        entry = self._entries.get(name, _Entry())
        return states + [(version, *state) for version, state in entry.unavailable.items()]

    def ready(self, name: str, version: str) -> bool:
        """True if partitions that are up hold a model for each stage of the pipeline, or load it on demand.

        Raises ModelNotFound, VersionNotFound, or BackendUnavailable for one that is broken.
        """
        status, _ = self._status(self._find(name, version))
        return status is VersionStatus.READY

    async def says_ready(self, name: str, version: str) -> bool:
        """As `ready`; models that say by themselves whether they are ready are asked as well."""
        if not self.ready(name, version):
            return False
        for stage in self._find(name, version).stages:
            known = [model for model in stage.models if self._is_ready(model)]
            if known and not any([await self.ask_model(model) for model in known]):
                return False
        return True

    def broken(self, name: str) -> str | None:
        """The reason why a model or pipeline, or a version of it, cannot be served; None if each can or may load."""
        entry = self._entries.get(name, _Entry())
        if entry.unreadable:
            return "; ".join(reason for _, reason in entry.unavailable.values())
        failed = [pipeline for pipeline in entry.versions.values() if self._failed_everywhere(pipeline)]
        return "; ".join(map(self._why_unavailable, failed)) or None

    def not_served(self) -> Iterator[tuple[str, str, str]]:
        """Versions that are known and get no requests, with the reasons; what was unloaded or is no model is left out.

        Each step does O(1) work: a name of which everything is served yields `("", "", "")`.
        """
        for name, entry in list(self._entries.items()):
            found = False
            for version, (status, reason) in () if entry.foreign else list(entry.unavailable.items()):
                if status is not VersionStatus.UNAVAILABLE or reason != UNLOADED:
                    found = True
                    yield name, version, reason or status.lower()
            for number, pipeline in list(entry.versions.items()):
                if (name, str(number)) not in self._serving:
                    found = True
                    yield name, str(number), self._why_unavailable(pipeline)
            if not found:
                yield "", "", ""

    def server_ready(self) -> bool:
        """True if the server takes requests: partitions take batches, and something is served, if anything is to be.

        A model that could not be read, or failed to load, does not count while another one is served, unless the server
        is strict.
        """
        if self.draining or not self._inventory.is_serving:
            return False
        entries = [entry for entry in self._entries.values() if not entry.foreign]
        if self._strict:
            failed = any(entry.unreadable or "" in entry.unavailable for entry in entries)
            return not failed and all(self.served(name) == self.versions(name) for name in self._entries)
        return bool(self._serving) or not any(entry.versions or entry.unreadable for entry in entries)

    def _versions(self, name: str) -> Mapping[int, Pipeline]:
        entry = self._entries.get(name)
        return {} if entry is None else entry.versions

    def _find(self, name: str, version: str) -> Pipeline:
        """The pipeline whether or not its models are loaded; raises as `pipeline`."""
        entry = self._entries.get(name, _Entry())
        if not version and entry.versions:
            return entry.versions[self._latest(entry)]
        if version.isascii() and version.isdigit() and (found := entry.versions.get(int(version))) is not None:
            return found
        if entry.unavailable and (refusal := self._refusal(name, version, entry)) is not None:
            kind = UnsupportedRequest if entry.unsupported else BackendUnavailable
            raise kind(refusal)
        if entry.unavailable and not entry.unreadable:
            raise ModelNotFound(f"Request for unknown model: {name!r} has no available versions")
        if not entry.versions and not entry.unavailable:
            raise ModelNotFound(f"Request for unknown model: {name!r} is not found")
        known = ", ".join(sorted({*self.versions(name), *entry.unavailable}, key=int))
        raise VersionNotFound(f"Request for unknown model: {name!r} version {version} is not found; it has {known}")

    @staticmethod
    def _refusal(name: str, version: str, entry: _Entry) -> str | None:
        """The reason why a known version that is not served gets no requests; None if it is not known."""
        if not entry.unreadable:
            if version not in entry.unavailable:
                return None
            status, reason = entry.unavailable[version]
            named = f"{name!r} version {version}" if version else repr(name)
            return f"Request for unknown model: {named} is not at ready state: {reason or status.lower()}"
        states = entry.unavailable
        found = states.get(version) or states.get("") or (None if version else next(iter(states.values())))
        return None if found is None else f"{name!r} cannot be served: {found[1]}"

    def _latest(self, entry: _Entry) -> int:
        """The latest version, passing over those whose models failed everywhere as long as there is another."""
        versions = entry.versions
        return max(
            (version for version in versions if not self._failed_everywhere(versions[version])), default=max(versions)
        )

    def _status(self, pipeline: Pipeline) -> tuple[VersionStatus, str]:
        """The status of a version that is served, and why it is not ready."""
        if reason := self._why_unavailable(pipeline):
            failed = self._failed_everywhere(pipeline)
            return VersionStatus.UNAVAILABLE if failed else VersionStatus.LOADING, reason
        if self.draining:
            return VersionStatus.UNAVAILABLE, "the server is stopping"
        if all(not stage.models or any(map(self._is_ready, stage.models)) for stage in pipeline.stages):
            return VersionStatus.READY, ""
        return VersionStatus.UNAVAILABLE, "no running worker has it loaded"

    def _is_ready(self, model: str) -> bool:
        return self._inventory.is_held(model) or (model in self._on_demand and self._inventory.any_up)

    def _why_unavailable(self, pipeline: Pipeline) -> str:
        """The reason why a pipeline cannot be served; "" when it can."""
        for stage in pipeline.stages:
            if stage.models and not any(map(self._gets_requests, stage.models)):
                reasons = [(model, self._why_not_loaded(model)) for model in stage.models]
                for model, reason in reasons:
                    if reason is None:
                        return f"model {model} is still loading"
                model, reason = reasons[0]
                return f"model {model} did not load: {reason}"
        return ""

    def _failed_everywhere(self, pipeline: Pipeline) -> bool:
        """True if all models of one of its stages failed to load on every partition that tried."""
        return any(
            stage.models
            and all(
                not self._gets_requests(model) and self._why_not_loaded(model) is not None for model in stage.models
            )
            for stage in pipeline.stages
        )

    def _gets_requests(self, model: str) -> bool:
        return model in self._inventory.loaded_ever or model in self._waiting

    def _why_not_loaded(self, model: str) -> str | None:
        """The reason why a model failed to load; None if it did not."""
        return self._inventory.failed.get(model, self._unplaced.get(model))

    def _changed(self, change: InventoryChange) -> None:
        if change.failed or (change.loaded_first and not self._waiting.issuperset(change.loaded)):
            self._find_serving()

    def _find_serving(self) -> None:
        self._serving = {
            (name, version): pipeline
            for name, entry in self._entries.items()
            if entry.versions
            for version, pipeline in [
                *((str(number), each) for number, each in entry.versions.items()),
                ("", entry.versions[self._latest(entry)]),
            ]
            if not self._why_unavailable(pipeline)
        }
        self._report()

    def _report(self) -> None:
        for changed in self._subscribers:
            changed()


async def _unasked(model: str) -> bool:
    del model
    return True
