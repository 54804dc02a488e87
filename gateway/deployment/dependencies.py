"""The served names, and the dependencies between them."""

from collections.abc import Collection, Mapping

from sluice.gateway.deployment.override import Override
from sluice.gateway.deployment.revision import Deployed, RevisionSource


class DependencyGraph:
    """Everything that is `served`, by name.

    A name is stranded if it is not served only because a dependency was unloaded; it returns with the dependency.
    """

    def __init__(self, served: Mapping[str, Deployed]) -> None:
        self.served = dict(served)
        self._stranded: dict[str, Deployed] = {}

    def serve(self, revision: Mapping[str, Deployed]) -> None:
        """Serve a revision, in place of what was served under its names."""
        self.served.update(revision)
        for name in revision:
            self._stranded.pop(name, None)

    def remove(self, name: str, *, with_dependencies: bool) -> tuple[dict[str, Deployed], set[str]]:
        """Stop serving a name; returns everything that is no longer served, and the stranded names among it.

        `with_dependencies` also removes what only this name needs.
        """
        self._stranded.pop(name, None)
        names = {name} & self.served.keys()
        if with_dependencies:
            while more := {each for each in self.served.keys() - names if self._only_needed(each, names)}:
                names |= more
        stranded = self.dependents(names) - names
        taken = {each: self.served.pop(each) for each in sorted(names | stranded)}
        self._stranded |= {each: taken[each] for each in stranded}
        return taken, stranded

    def overrides(self, without: str = "") -> dict[str, Override]:
        """The overrides in force, without that of one name."""
        known = {**self._stranded, **self.served}.items()
        return {name: each.override for name, each in known if each.override is not None and name != without}

    def dependents(self, names: Collection[str]) -> set[str]:
        """The served names that need one of these names, directly or not."""
        return _dependents(names, self.served)

    def returning(self, names: Collection[str]) -> set[str]:
        """The stranded names whose dependencies are complete once `names` are served."""
        found: set[str] = set()
        while more := {
            name
            for name, each in self._stranded.items()
            if name not in found and each.needs <= {*names, *found, *self.served}
        }:
            found |= more
        return found - set(names)

    def involved(self, source: RevisionSource, name: str, overrides: Mapping[str, Override]) -> set[str]:
        """All names that a change of one name may affect; reads the files of its dependencies."""
        known = {**self._stranded, **self.served}
        needed = source.needed({name}, {}, overrides)
        if name in known:
            needed |= known[name].needs
        return {name, *needed, *_dependents({name}, known)}

    def _only_needed(self, name: str, without: Collection[str]) -> bool:
        users = {each for each, was in self.served.items() if name in was.needs}
        return bool(users) and users <= set(without)


def _dependents(names: Collection[str], known: Mapping[str, Deployed]) -> set[str]:
    found: set[str] = set()
    while more := {each for each, was in known.items() if was.needs & {*names, *found}} - found:
        found |= more
    return found
