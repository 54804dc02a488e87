"""References to models in files: by name and, unless the latest is meant, by version."""

from collections.abc import Iterable, Mapping

from sluice.models.conversion import NO_LINES
from sluice.models.spec import ModelSpec
from sluice.models.spelling import did_you_mean
from sluice.models.yaml_file import Lines

_NAME_CHARACTERS = 100
_MOST_NAMED = 50
"""Bounds of messages: tensors of a model's file may have any names, and any number."""


def find_model(
    models: Mapping[str, ModelSpec], name: str, version: int | None, path: str, at: str, lines: Lines = NO_LINES
) -> ModelSpec:
    """Return the model that is meant; raises ConfigError, whose message starts with `path` and the place in `at`.

    A stage has one answer, so it cannot be of a decoupled model.
    """
    versions = {spec.version: spec for spec in models.values() if spec.name == name}
    if not versions:
        known = sorted({spec.name for spec in models.values()})
        raise lines.error(path, f"{at}.model", f"no model '{name}'; {expected_one_of(known, name)}")
    wanted = max(versions) if version is None else version
    if wanted not in versions:
        known = [str(each) for each in sorted(versions)]
        what = f"model '{name}' has no version {wanted}; {expected_one_of(known)}"
        raise lines.error(path, f"{at}.version", what)
    if versions[wanted].decoupled:
        what = (
            f"'{name}' is decoupled: it sends any number of responses to a request; expected a model with one response"
        )
        raise lines.error(path, f"{at}.model", what)
    return versions[wanted]


def expected_one_of(names: Iterable[str], given: str = "") -> str:
    """The possible names, as the end of a message, with the one that is similar to the name that was `given`."""
    listed = list(names)
    named = [f"{name:.{_NAME_CHARACTERS}}" for name in listed[:_MOST_NAMED]]
    if len(listed) < 2:
        return f"expected {named[0]}" if named else "there are none"
    more = f" and {len(listed) - len(named)} more" if len(listed) > len(named) else ""
    return f"expected one of {', '.join(named)}{more}{did_you_mean(given, listed)}"
