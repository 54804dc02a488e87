"""The batch policies by name: every file of this room that calls `batch_policy` is found."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from sluice.batcher import policies
from sluice.batcher.extensions import import_modules
from sluice.batcher.interface.config import Limits, PolicyConfig
from sluice.batcher.policies.base import AnyPolicySettings, BatchPolicy, PolicySettings
from sluice.models.errors import ConfigError
from sluice.models.spelling import did_you_mean

DEFAULT = "deadline"
"""The policy of settings without a `name`."""
_ONCE_SHARED: Mapping[str, object] = {
    "objective": "latency",
    "preferred": [],
    "max_delay_ms": 0,
    "max_delay_ns": 0,
    "levels": {"count": 0, "default": 0, "policy": {}, "policies": {}},
    "preserve_ordering": False,
}
"""Settings and journals once had these keys for every policy; with these values they say nothing."""

_T = TypeVar("_T", bound=Callable[[Any, Limits], BatchPolicy])


class RegisteredPolicy(NamedTuple):
    """A policy: `settings` are what users write, `config` what `build` is called with."""

    name: str
    settings: type[PolicySettings]
    config: type[PolicySettings]
    build: Callable[[Any, Limits], BatchPolicy]


_registered: dict[str, RegisteredPolicy] = {}


def batch_policy(settings: type[PolicySettings], config: type[PolicySettings] | None = None) -> Callable[[_T], _T]:
    """Register the class or function below it, which makes a policy from its configuration and the limits.

    `config` is the class of `settings.config()` where that is another one.
    """
    if not (isinstance(settings, type) and issubclass(settings, PolicySettings)):
        raise ConfigError(
            f"{_full_name(settings)}: no settings of a policy; expected @batch_policy(SETTINGS) with a subclass of "
            "PolicySettings"
        )
    name = str(settings.__struct_config__.tag)
    if name == settings.__name__:  # msgspec's default
        raise ConfigError(f'{_full_name(settings)}: no tag; expected tag="NAME", the name of the policy')

    def register(build: _T) -> _T:
        if (other := _registered.get(name)) is not None:
            raise ConfigError(f"batch policy {name}: registered by {other.build.__module__} and by {build.__module__}")
        _registered[name] = RegisteredPolicy(name, settings, config or settings, build)
        return build

    return register


@cache
def batch_policies() -> Mapping[str, RegisteredPolicy]:
    """All policies, by name and in the order of their names."""
    import_modules(policies)
    return dict(sorted(_registered.items()))


def select_policy(config: PolicyConfig, limits: Limits) -> BatchPolicy:
    """A policy for one model, made from its configuration."""
    return _registered_for(config).build(config, limits)


def policy_name(config: PolicyConfig) -> str:
    """The name of the policy that a configuration belongs to."""
    return _registered_for(config).name


def _registered_for(config: PolicyConfig) -> RegisteredPolicy:
    for policy in _registered.values():
        if isinstance(config, policy.config):
            return policy
    raise ValueError(f"{type(config).__name__}: no batch policy is registered for this configuration")


def decode_policy(form: type, document: object) -> PolicySettings:
    """The `dec_hook` of msgspec for the settings of policies in a configuration, and for their form in a journal.

    A configuration may have the name alone.
    """
    if form is AnyPolicySettings:
        forms = {policy.name: policy.settings for policy in batch_policies().values()}
    elif form is PolicyConfig:
        forms = {policy.name: policy.config for policy in batch_policies().values()}
    else:
        raise NotImplementedError(f"{form.__name__}: expected the settings of a batch policy")
    if form is AnyPolicySettings and isinstance(document, str):
        document = {"name": document}
    if not isinstance(document, dict):
        raise ValueError(
            f"Expected `str | object`, the name of a policy or its settings, got `{type(document).__name__}`"
        )
    name = document.get("name", DEFAULT)
    if not isinstance(name, str) or name not in forms:
        raise ValueError(f"name: expected one of {', '.join(forms)}, got {name!r}{did_you_mean(str(name), forms)}")
    own = {}
    for key, value in document.items():
        if key != "name" and key not in forms[name].__struct_fields__:
            _check_foreign(key, value, name, forms)
        else:
            own[key] = value
    try:
        return msgspec.convert(own, forms[name], str_keys=True)  # as JSON has them
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # msgspec names the place of a plain ValueError only


def policy_settings(form: type) -> list[type[PolicySettings]]:
    """The settings of all policies, where a form has those of any; none for other types."""
    return [policy.settings for policy in batch_policies().values()] if form is AnyPolicySettings else []


def _check_foreign(key: str, value: object, name: str, forms: Mapping[str, type[PolicySettings]]) -> None:
    """Raise ValueError for a key that the policy does not have, unless settings once had it for every policy."""
    owners = [other for other, form in forms.items() if key in form.__struct_fields__]
    if owners and key in _ONCE_SHARED and value == _ONCE_SHARED[key]:
        return
    if owners:
        raise ValueError(f"{key} belongs to policy {' or '.join(owners)}, not to {name}")
    known = ("name", *forms[name].__struct_fields__)
    raise ValueError(f"Object contains unknown field `{key}`; expected {', '.join(known)}{did_you_mean(key, known)}")


def _full_name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', thing)}"
