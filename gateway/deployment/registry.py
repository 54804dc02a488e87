"""What is served right now: pipelines by name and version, and how ready they and the server are."""

import enum
from collections.abc import Iterable, Mapping

from sluice.models.errors import BackendUnavailable, ModelNotFound, ServingError, UnsupportedRequest, VersionNotFound
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.repository.scan import BrokenEntry


class VersionStatus(enum.StrEnum):
    """How a version of a model or pipeline is."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class ModelRegistry:
    """The pipelines (a model by itself is one, too) that clients may name.

    A pipeline is served once some worker has loaded a model for each of its stages, or is to on demand; one that is
    broken, or has a stage whose models no worker could load, stays known with the reason. `partitions` are the workers.
    A `strict` server is not ready as long as anything is broken or loading.
    """

    def __init__(
        self,
        server_version: str,
        pipelines: Iterable[Pipeline],
        broken: Iterable[BrokenEntry],
        partitions: Iterable[str],
        *,
        strict: bool = False,
    ) -> None:
        self.server_name = "sluice"
        self.server_version = server_version
        self.live = True
        self.draining = False
        self._strict = strict
        self._known: dict[str, dict[int, Pipeline]] = {}
        for pipeline in pipelines:
            self._known.setdefault(pipeline.name, {})[pipeline.version] = pipeline
        self._broken: dict[str, dict[str, str]] = {}
        self._unsupported: set[str] = set()
        for each in broken:
            self._broken.setdefault(each.name, {})["" if each.version is None else str(each.version)] = each.reason
            if each.unsupported:
                self._unsupported.add(each.name)
        self._aside: dict[str, dict[str, tuple[VersionStatus, str]]] = {}
        self._failed: dict[str, str] = {}
        self._loaded_once: set[str] = set()
        self._holds: dict[str, frozenset[str]] = {partition: frozenset() for partition in partitions}
        self._up: set[str] = set()
        self._on_demand: set[str] = set()
        self._unawaited: set[str] = set()
        self._all_were_up = False
        self._serving: dict[tuple[str, str], Pipeline] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._broken or name in self._aside

    def serve(self, name: str, pipelines: Iterable[Pipeline]) -> None:
        """Serve these, whose models workers hold, under a name, in place of what was served there."""
        self.set_aside(name, {})
        self._known[name] = {pipeline.version: pipeline for pipeline in pipelines}
        self._find_serving()

    def set_aside(
        self, name: str, states: Mapping[str, tuple[VersionStatus, str]], *, unsupported: bool = False
    ) -> None:
        """Serve nothing under a name; `states` say of its versions how they are, and why.

        `unsupported` says that it is of a kind that is not served.
        """
        self._broken.pop(name, None)
        self._aside.pop(name, None)
        self._unsupported.discard(name)
        if unsupported:
            self._unsupported.add(name)
        if states:
            self._aside[name] = dict(states)
        if self._known.pop(name, None):
            self._find_serving()

    def give_up(self, name: str) -> None:
        """Know nothing more of a name under which nothing could be read or loaded; otherwise nothing happens."""
        if name not in self._known and (name in self._broken or "" in self._aside.get(name, ())):
            self.set_aside(name, {})

    def forget(self, model: str) -> None:
        """No partition holds a model any more, nor will."""
        self._loaded_once.discard(model)
        self._on_demand.discard(model)
        self._failed.pop(model, None)

    def pipeline(self, name: str, version: str) -> Pipeline:
        """The pipeline of that name; version "" stands for the latest that no worker failed to load.

        Raises ModelNotFound, VersionNotFound, UnsupportedRequest for one of a kind that is not served, or
        BackendUnavailable for one that is known but broken or still loading.
        """
        serving = self._serving.get((name, version))
        if serving is not None:
            return serving
        pipeline = self._find(name, version)
        raise BackendUnavailable(f"{name!r} cannot be served: {self._trouble(pipeline)}")

    def _find(self, name: str, version: str) -> Pipeline:
        """The pipeline whether or not its models are loaded; raises as `pipeline`."""
        versions = self._known.get(name, {})
        if not version and versions:
            return versions[self._latest(name)]
        if version.isascii() and version.isdigit() and (found := versions.get(int(version))) is not None:
            return found
        broken = self._broken.get(name, {})
        if reason := broken.get(version) or broken.get("") or ("" if version else next(iter(broken.values()), "")):
            raise self._refusal(name, f"{name!r} cannot be served: {reason}")
        if version in (aside := self._aside.get(name, {})):
            state, reason = aside[version]
            why = reason or state.lower()
            named = f"{name!r} version {version}" if version else repr(name)
            raise self._refusal(name, f"Request for unknown model: {named} is not at ready state: {why}")
        if aside:
            raise ModelNotFound(f"Request for unknown model: {name!r} has no available versions")
        if not versions and not broken:
            raise ModelNotFound(f"Request for unknown model: {name!r} is not found")
        known = ", ".join(sorted({*self.versions(name), *broken}, key=int))
        raise VersionNotFound(f"Request for unknown model: {name!r} version {version} is not found; it has {known}")

    def _refusal(self, name: str, message: str) -> ServingError:
        return UnsupportedRequest(message) if name in self._unsupported else BackendUnavailable(message)

    def _latest(self, name: str) -> int:
        """The latest version, passing over those whose models did not load as long as there is another."""
        versions = self._known[name]
        return max((version for version in versions if not self._hopeless(versions[version])), default=max(versions))

    def _hopeless(self, pipeline: Pipeline) -> bool:
        """Whether no model of one of its stages did load anywhere."""
        failed = self._failed.keys() - self._loaded_once
        return any(stage.models and failed.issuperset(stage.models) for stage in pipeline.stages)

    def _trouble(self, pipeline: Pipeline) -> str:
        """Why a pipeline cannot be served; "" when it can."""
        for stage in pipeline.stages:
            if stage.models and self._loaded_once.isdisjoint(stage.models):
                if loading := [model for model in stage.models if model not in self._failed]:
                    return f"model {loading[0]} is still loading"
                return f"model {stage.models[0]} did not load: {self._failed[stage.models[0]]}"
        return ""

    def names(self) -> list[str]:
        """All names, those of broken models and pipelines included."""
        return sorted(self._known.keys() | self._broken.keys() | self._aside.keys())

    def caching(self) -> list[str]:
        """The names whose answers may be given again."""
        versions = self._known.items()
        return sorted(name for name, each in versions if any(pipeline.response_cache for pipeline in each.values()))

    def versions(self, name: str) -> list[str]:
        """The versions of a pipeline, ascending; empty when nothing of that name could be read."""
        return [str(version) for version in sorted(self._known.get(name, ()))]

    def served(self, name: str) -> list[str]:
        """The versions of a pipeline that have been loaded, ascending."""
        return [version for version in self.versions(name) if (name, version) in self._serving]

    def states(self, name: str) -> list[tuple[str, VersionStatus, str]]:
        """Every version of a name ("" for all that could not be read), how it is, and why when it is not ready."""
        states = []
        for version in self.versions(name):
            pipeline = self._known[name][int(version)]
            state, reason = VersionStatus.READY, self._trouble(pipeline)
            if reason:
                state = VersionStatus.UNAVAILABLE if self._hopeless(pipeline) else VersionStatus.LOADING
            elif not self.ready(name, version):
                state = VersionStatus.UNAVAILABLE
                reason = "the server is stopping" if self.draining else "no worker that holds it is up"
            states.append((version, state, reason))
        states += [(version, *how) for version, how in self._aside.get(name, {}).items()]
        broken = self._broken.get(name, {}).items()
        return states + [(version, VersionStatus.UNAVAILABLE, reason) for version, reason in broken]

    def ready(self, name: str, version: str) -> bool:
        """Whether workers that are up hold a model for each stage of the pipeline, or load it when it is asked for.

        Raises ModelNotFound, VersionNotFound, or BackendUnavailable for one that is broken.
        """
        pipeline = self._find(name, version)
        if self.draining:
            return False
        held = frozenset[str]().union(*(self._holds[partition] for partition in self._up))
        ready = (held, self._on_demand if self._up else ())
        return all(
            not stage.models or any(model in models for model in stage.models for models in ready)
            for stage in pipeline.stages
        )

    def broken(self, name: str) -> str | None:
        """Why a model or pipeline cannot be served, or a version of it; None when all is well or still loading."""
        if name in self._broken:
            return "; ".join(self._broken[name].values())
        hopeless = [pipeline for pipeline in self._known.get(name, {}).values() if self._hopeless(pipeline)]
        return "; ".join(map(self._trouble, hopeless)) or None

    def workers_ready(self) -> bool:
        """Whether workers take batches: at first once all are up, from then on while any of them is."""
        return not self.draining and self._all_were_up and bool(self._up)

    def server_ready(self) -> bool:
        """Whether the server takes requests: workers do, and something can be served, or nothing was to be.

        Models that could not be read, or failed to load, do not count as long as there is another one, since the rest
        is served, unless the server is strict.
        """
        if not self.workers_ready():
            return False
        if self._strict:
            failed = self._broken or any("" in states for states in self._aside.values())
            return not failed and all(self.served(name) == self.versions(name) for name in self._known)
        return bool(self._serving) or not (self._known or self._broken)

    def partition_ready(self, partition: str, loaded: Iterable[str], failed: Mapping[str, str]) -> None:
        """A worker is up; `failed` maps the models it could not load to the reasons."""
        self._holds[partition] = frozenset(loaded)
        self._up.add(partition)
        self._note_all_up()
        self._loaded_once |= self._holds[partition]
        self._failed.update(failed)
        self._find_serving()

    def partition_lost(self, partition: str) -> None:
        """A worker is gone, until `partition_ready`."""
        self._up.discard(partition)

    def partition_unreachable(self, partition: str) -> None:
        """A partition that we do not start is gone, or was not there: the server gets ready without it."""
        self._up.discard(partition)
        self._unawaited.add(partition)
        self._note_all_up()

    def model_loaded(self, partition: str, model: str) -> None:
        """A worker that is up holds one more model."""
        self._holds[partition] |= {model}
        if model not in self._loaded_once:
            self._loaded_once.add(model)
            self._find_serving()

    def model_load_failed(self, model: str, reason: str) -> None:
        """A worker that is up could not load a model, which others may hold."""
        self._failed[model] = reason
        self._find_serving()

    def model_on_demand(self, model: str) -> None:
        """No worker begins with a model, but some could hold it: requests for it are let in, and have it loaded."""
        self._loaded_once.add(model)
        self._find_serving()

    def models_on_demand(self, models: Iterable[str]) -> None:
        """Models are loaded whenever they are asked for: they count as ready while a worker is up."""
        self._on_demand.update(models)
        self._loaded_once |= self._on_demand
        self._find_serving()

    def model_unloaded(self, partition: str, model: str) -> None:
        """A worker that is up does not hold a model any more."""
        self._holds[partition] -= {model}

    def _note_all_up(self) -> None:
        self._all_were_up |= len(self._up | self._unawaited) == len(self._holds)

    def _find_serving(self) -> None:
        self._serving = {
            (name, version): pipeline
            for name, versions in self._known.items()
            for version, pipeline in [
                *((str(number), each) for number, each in versions.items()),
                ("", versions[self._latest(name)]),
            ]
            if not self._trouble(pipeline)
        }
