"""References to models in files: by name and, unless the latest is meant, by version."""

from collections.abc import Iterable, Mapping

from sluice.models.errors import ConfigError
from sluice.models.spec import ModelSpec


def find_model(models: Mapping[str, ModelSpec], name: str, version: int | None, path: str, at: str) -> ModelSpec:
    """Return the model that is meant; raises ConfigError, whose message starts with `path` and the place in `at`.

    A stage has one answer, so it cannot be of a decoupled model.
    """
    versions = {spec.version: spec for spec in models.values() if spec.name == name}
    if not versions:
        known = sorted({spec.name for spec in models.values()})
        raise ConfigError(f"{path}: {at}.model: no model '{name}'; {expected_one_of(known)}")
    wanted = max(versions) if version is None else version
    if wanted not in versions:
        known = [str(each) for each in sorted(versions)]
        raise ConfigError(f"{path}: {at}.version: model '{name}' has no version {wanted}; {expected_one_of(known)}")
    if versions[wanted].decoupled:
        raise ConfigError(
            f"{path}: {at}.model: '{name}' is decoupled: it sends any number of responses to a request; expected a "
            "model with one response"
        )
    return versions[wanted]


def expected_one_of(names: Iterable[str]) -> str:
    """The possible names, as the end of a message."""
    listed = list(names)
    if len(listed) < 2:
        return f"expected {listed[0]}" if listed else "there are none"
    return f"expected one of {', '.join(listed)}"
