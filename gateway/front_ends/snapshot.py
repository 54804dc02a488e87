"""The served pipelines as front ends know them: the gateway's process publishes every change.

A front end may be a moment behind. So it has only requests for names that it knows, and passes all others on; and the
gateway's process looks up the name of a request again.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from sluice.gateway.front_ends.messages import NamesChanged, ServedName
from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.models.pipelines.pipeline import Pipeline

PIPELINES_A_MESSAGE = 16
NAMES_A_MESSAGE = 1024

Serving = Mapping[tuple[str, str], Pipeline]
"""Pipelines by name and version; version "" is the latest."""


def changes(before: Serving, now: Serving, draining: bool) -> Iterator[NamesChanged]:
    """The messages that bring a front end from one state to another."""
    known = {pipeline.key for pipeline in before.values()}
    new: dict[str, Pipeline] = {}
    names = [ServedName(*asked, "") for asked in before if asked not in now]
    for asked, pipeline in now.items():
        if before.get(asked) is not pipeline:
            names.append(ServedName(*asked, pipeline.key))
            if pipeline.key not in known:
                new[pipeline.key] = pipeline
    # First the pipelines, so that none is named before it is known.
    short = [msgspec.structs.replace(each, stages=(), sources={}, config="") for each in new.values()]
    for first in range(0, len(short), PIPELINES_A_MESSAGE):
        yield NamesChanged((), tuple(short[first : first + PIPELINES_A_MESSAGE]), draining)
    for first in range(0, len(names), NAMES_A_MESSAGE) or (0,):
        yield NamesChanged(tuple(names[first : first + NAMES_A_MESSAGE]), (), draining)


class ServedTable:
    """A front end's table of what clients may name."""

    def __init__(self) -> None:
        self.draining = False
        self.changes = 0
        """The number of changes until now."""
        self._pipelines: dict[str, Pipeline] = {}
        self._names: dict[tuple[str, str], Pipeline] = {}

    def apply(self, change: NamesChanged) -> None:
        """Apply a change."""
        self.changes += 1
        self.draining = change.draining
        self._pipelines.update((pipeline.key, pipeline) for pipeline in change.pipelines)
        for name in change.names:
            pipeline = self._pipelines.get(name.key)
            if pipeline is None:
                self._names.pop((name.name, name.version), None)
            else:
                self._names[name.name, name.version] = pipeline
        if change.names:
            self._pipelines = {pipeline.key: pipeline for pipeline in self._names.values()}

    def pipeline(self, name: str, version: str) -> Pipeline:
        """The pipeline of that name. Raises RelayNeeded if there is none: the gateway's process knows why."""
        try:
            return self._names[name, version]
        except KeyError:
            raise RelayNeeded from None

    def only_name(self) -> str:
        """The only name that gets requests. Raises RelayNeeded if there are others, or none."""
        names = {name for name, _ in self._names}
        if len(names) != 1:
            raise RelayNeeded
        return names.pop()

    def has(self, asked: tuple[str, str], pipeline: Pipeline) -> bool:
        """True if clients still get that pipeline by a name and a version."""
        return self._names.get(asked) is pipeline

    def versions(self, name: str) -> Sequence[str]:
        """The versions of a pipeline."""
        return [version for known, version in self._names if known == name and version]
