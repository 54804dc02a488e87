"""Groups of the API that only clients with a key may use."""

import enum
import hmac
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

GRPC_PREFIX = "triton-grpc-protocol-"
"""gRPC clients send the key as metadata with this prefix before the name of the header."""

_HEADER = re.compile(r"[a-z0-9-]+")


class ApiGroup(enum.StrEnum):
    """The parts of the API that can be restricted, over HTTP and gRPC alike."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"
    PARTITIONS = "partitions"
    EXPLAIN = "explain"
    METRICS = "metrics"
    PAGE = "page"
    REFLECTION = "reflection"


class RestrictedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Groups whose requests must have the header `header` with the value `value`."""

    groups: tuple[ApiGroup, ...]
    header: str
    value: str

    def __post_init__(self) -> None:
        if not self.groups or not _HEADER.fullmatch(self.header):
            raise ValueError("expected at least one group and a header of lower-case letters, digits and '-'")
        if not self.value or not self.value.isascii() or not self.value.isprintable():
            raise ValueError("expected a value of printable ASCII")


class Restrictions:
    """The keys of all restricted groups, and the groups that are `closed` to all. Raises ValueError for two keys.

    Without a key of its own, `explain` has that of `trace`.
    """

    def __init__(self, settings: Sequence[RestrictedSettings] = (), closed: Collection[ApiGroup] = ()) -> None:
        self._keys: dict[ApiGroup, RestrictedSettings] = {}
        for each in settings:
            for group in each.groups:
                if group in self._keys:
                    raise ValueError(f"group {group} has two keys, expected one")
                self._keys[group] = each
        if ApiGroup.TRACE in self._keys:
            self._keys.setdefault(ApiGroup.EXPLAIN, self._keys[ApiGroup.TRACE])
        self.closed = frozenset(closed) - self._keys.keys()

    def __bool__(self) -> bool:
        return bool(self._keys or self.closed)

    @property
    def keyed(self) -> frozenset[ApiGroup]:
        """The groups that need a key."""
        return frozenset(self._keys)

    def refusal(self, group: ApiGroup, headers: Mapping[str, str], prefix: str = "") -> str:
        """The reason to refuse a request with these headers the use of a group; "" if it may."""
        if group in self.closed:
            return (
                f"The group '{group}' is closed, since the server listens on more than the loopback: expected a key "
                f"for it in 'restricted', or --open-group {group}"
            )
        key = self._keys.get(group)
        if key is None:
            return ""
        name = prefix + key.header
        if hmac.compare_digest(headers.get(name, "").encode(), key.value.encode()):
            return ""
        return f"This protocol is restricted, expecting header '{name}'"

    def forbids(self, group: ApiGroup, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """True if a request with these raw headers may not use a group."""
        key = self._keys.get(group)
        if key is None:
            return False
        return not any(
            name == key.header.encode() and hmac.compare_digest(value, key.value.encode()) for name, value in headers
        )
