"""The checks of `sluice doctor --cluster`: worker servers, links, clocks, versions, leases and caches."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sluice.gateway.cluster.dns import look_up
from sluice.gateway.config.remote_settings import PartitionSettings, RemoteClass, is_address
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.server.limits import Finding, Severity
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.about import CacheRoom, Survey, survey
from sluice.gateway.worker_protocol.client import read_key
from sluice.models.client_tls import ClientTls
from sluice.models.errors import ConfigError, PartitionError

MOST_AT_ONCE = 8
"""Worker servers that are asked at a time; more would disturb each other's bandwidth."""
SLOW_TRIP_NS = 5_000_000
SLOW_BYTES_PER_S = 50e6
CLOCK_NOTE_NS, CLOCK_WRONG_NS = 100_000_000, 60_000_000_000
LEAST_FREE_BYTES = 256 << 20
"""Room on a disk without which nothing more comes into a cache."""
_MIB, _GIB = 1 << 20, 1 << 30

_HINTS = {
    "the key is wrong": "give both sides the same key_file",
    "wants a key": "give both sides the same key_file",
    "cannot be looked up": "check the name, and the DNS of this machine",
    "Hostname Verification": "give the name in its certificate as server_name",
    "CERTIFICATE_VERIFY_FAILED": "its certificate must be from the authority that this side trusts",
    "Socket closed": "one side uses TLS and the other does not, or it refuses the certificate of this side",
    "WRONG_VERSION_NUMBER": "it does not use TLS, and this side does",
}
"""Advice, by a part of the reason."""
_NOT_THERE = "is `sluice worker` running there, and may it be reached?"


class Place(NamedTuple):
    """The place of a worker. `kind` is that of its class, "" if it may have any."""

    url: str
    kind: str = ""
    origin: str = "--workers"


class Access(NamedTuple):
    """A key and, unless None, certificates, which worker servers want to see."""

    key: str = ""
    tls: ClientTls | None = None
    server_name: str = ""


Answer = Survey | PartitionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the checks."""
    parser.add_argument(
        "--cluster", action="store_true", help="check the workers of --config or --workers instead of this machine"
    )
    parser.add_argument("--workers", metavar="URL,…", help="addresses of worker servers, HOST:PORT, for --cluster")
    parser.add_argument("--key-file", metavar="FILE", help="the key that the workers want, for --workers")
    parser.add_argument("--server-name", metavar="NAME", help="the name in the certificates of workers, for --workers")


def cluster_findings(options: argparse.Namespace, config: ServerConfig) -> Iterator[Finding]:
    """All findings about the workers of a configuration, or those that the options list. Raises ConfigError."""
    settings = config.partitions if isinstance(config.partitions, PartitionSettings) else None
    access = _access(options, settings)
    places: list[Place] = []
    if options.workers is not None:
        places = [Place(url) for url in _urls(options.workers)]
    elif settings is None or not settings.classes:
        raise ConfigError("--cluster: expected --workers, or --config with remote partitions")
    else:
        for each in settings.classes:
            found, findings = places_of(each)
            places += found
            yield from findings
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        answers = list(pool.map(lambda place: _ask(place, access), places))
    yield from findings_of(places, answers)


def _access(options: argparse.Namespace, settings: PartitionSettings | None) -> Access:
    tls = settings.tls if settings is not None else None
    if options.key_file is not None or options.cacert or options.cert or settings is None:
        given = ClientTls(options.cacert or "", options.cert or "", options.key or "")
        secure = options.cacert or options.cert
        return Access(read_key(options.key_file), given if secure else None, options.server_name or "")
    key = read_key(settings.key_file)
    if tls is None:
        return Access(key)
    return Access(key, ClientTls(tls.ca, tls.certificate, tls.private_key), tls.server_name)


def _urls(text: str) -> list[str]:
    urls = [url.strip() for url in text.split(",") if url.strip()]
    for url in urls:
        if not is_address(url):
            raise ConfigError(f"--workers: expected addresses such as 10.0.0.5:9001, got '{url:.80}'")
    if not urls:
        raise ConfigError("--workers: expected at least one address")
    return urls


def places_of(
    given: RemoteClass, look_up: Callable[[str, int], Sequence[str]] = look_up
) -> tuple[list[Place], list[Finding]]:
    """Where the workers of a class are to be, and what is noticed when they are looked up."""
    origin = f"class {given.name}"
    if given.urls is not None:
        return [Place(url, given.profile_kind, origin) for url in given.urls], []
    if given.dns is None:
        text = f"{origin}: its workers are placed by Ray; `sluice partitions list --url` has those of a running gateway"
        return [], [Finding("workers", Severity.NOTE, text)]
    name = given.dns.name
    try:
        urls = look_up(name, given.dns.port)
    except OSError as error:
        text = f"{origin}: {name} cannot be looked up: {error}; check the DNS of this machine"
        return [], [Finding("workers", Severity.WRONG, text)]
    findings = []
    if not urls:
        text = f"{origin}: {name} has no addresses; check the name, and that workers are ready"
        findings.append(Finding("workers", Severity.WRONG, text))
    elif len(urls) > given.dns.max:
        text = f"{origin}: {name} has {len(urls)} addresses, but dns.max allows {given.dns.max} partitions"
        findings.append(Finding("workers", Severity.NOTE, text))
    return [Place(url, given.profile_kind, origin) for url in urls], findings


def _ask(place: Place, access: Access) -> Answer:
    try:
        return survey(place.url, access.key, access.tls, access.server_name)
    except PartitionError as error:
        return error


def findings_of(places: Sequence[Place], answers: Sequence[Answer]) -> Iterator[Finding]:
    """The findings for the answers of worker servers, each at its place."""
    surveys = []
    for place, answer in zip(places, answers, strict=True):
        if isinstance(answer, Survey):
            surveys.append(answer)
            yield _worker(place, answer)
        else:
            text = f"{place.url} of {place.origin}: {answer}; {_hint(str(answer))}"
            yield Finding("workers", Severity.WRONG, text)
    nodes: dict[str, list[Survey]] = defaultdict(list)
    for each in surveys:
        nodes[each.about.node].append(each)
    yield from _versions(surveys)
    yield from _cores(nodes)
    for node, on_node in nodes.items():
        yield _link(node, on_node)
    for node, on_node in nodes.items():
        yield _clock(node, on_node)
    if surveys:
        yield _leases(surveys)
    yield from _caches(nodes)


def _hint(reason: str) -> str:
    return next((hint for sign, hint in _HINTS.items() if sign in reason), _NOT_THERE)


def _who(survey: Survey) -> str:
    """A worker with its address, since workers that were given no names have the same one."""
    return f"{survey.about.name} on {survey.about.node} ({survey.url})"


def _worker(place: Place, survey: Survey) -> Finding:
    about = survey.about
    who = _who(survey)
    if place.kind and about.kind != place.kind:
        text = f"{who}: it is a {about.kind}, and {place.origin} expects {place.kind}: gateways refuse it"
        return Finding("workers", Severity.WRONG, text)
    if about.state:
        return Finding("workers", Severity.WRONG, f"{who}: {about.state}")
    cores = f", cores {','.join(map(str, about.cores))}" if about.cores else ""
    models = f"{len(about.models)} model{'s' if len(about.models) != 1 else ''}"
    lease = f"leased by {about.holder}" if about.holder else "free"
    return Finding("workers", Severity.OK, f"{who}: {about.kind}{cores}, {models}, {lease}")


def _versions(surveys: Sequence[Survey]) -> Iterator[Finding]:
    ours = server_version()
    for each in surveys:
        if each.about.version != ours:
            text = (
                f"{_who(each)} has version {each.about.version}, and this is {ours}: a "
                "gateway of this version refuses it; install the same version on both"
            )
            yield Finding("versions", Severity.WRONG, text)
    if surveys and all(each.about.version == ours for each in surveys):
        yield Finding("versions", Severity.OK, f"all workers have version {ours}")


def _cores(nodes: Mapping[str, Sequence[Survey]]) -> Iterator[Finding]:
    for node, surveys in nodes.items():
        users: dict[int, list[str]] = defaultdict(list)
        for each in surveys:
            if each.about.kind.startswith("cpu"):
                for core in each.about.cores:
                    users[core].append(f"{each.about.name} ({each.url})")
        shared: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for core, names in users.items():
            if len(names) > 1:
                shared[tuple(names)].append(core)
        for sharing, cores in shared.items():
            text = f"node {node}: {' and '.join(sharing)} share the cores {','.join(map(str, sorted(cores)))}"
            yield Finding("cores", Severity.WRONG, f"{text}: they slow each other down; give each its own")


def _link(node: str, surveys: Sequence[Survey]) -> Finding:
    trip_ns = min(each.round_trip_ns for each in surveys)
    to, back = (max(getattr(each, name) for each in surveys) for name in ("bytes_per_s_to", "bytes_per_s_from"))
    text = f"node {node}: round trip {trip_ns / 1e6:.2f} ms, {to / 1e6:.0f} MB/s there, {back / 1e6:.0f} MB/s back"
    if trip_ns > SLOW_TRIP_NS:
        return Finding("links", Severity.NOTE, f"{text}: each batch takes that much longer")
    if min(to, back) < SLOW_BYTES_PER_S:
        return Finding("links", Severity.NOTE, f"{text}: large tensors take long on this link")
    return Finding("links", Severity.OK, text)


def _clock(node: str, surveys: Sequence[Survey]) -> Finding:
    nearest = min(surveys, key=lambda each: each.round_trip_ns)
    ahead_ns = nearest.clock_ahead_ns
    text = (
        f"node {node}: its clock is {abs(ahead_ns) / 1e6:.1f} ms {'ahead of' if ahead_ns >= 0 else 'behind'} this one, "
        f"within {nearest.round_trip_ns / 2e6:.1f} ms"
    )
    if abs(ahead_ns) > CLOCK_WRONG_NS:
        return Finding("clocks", Severity.WRONG, f"{text}: certificates may count as expired; set it by NTP")
    if abs(ahead_ns) > CLOCK_NOTE_NS:
        return Finding("clocks", Severity.NOTE, f"{text}: log lines will seem out of order; batches need no clock")
    return Finding("clocks", Severity.OK, text)


def _leases(surveys: Sequence[Survey]) -> Finding:
    holders = Counter(each.about.holder for each in surveys)
    free = holders.pop("", 0)
    parts = [f"gateway {name} has {count}" for name, count in sorted(holders.items())]
    parts += [f"{free} {'is' if free == 1 else 'are'} free"] * bool(free)
    count = f"{len(surveys)} worker{'s' if len(surveys) != 1 else ''}"
    return Finding("leases", Severity.OK if holders else Severity.NOTE, f"{count}: {', '.join(parts)}")


def _caches(nodes: Mapping[str, Sequence[Survey]]) -> Iterator[Finding]:
    for node, on_node in nodes.items():
        for room in {each.about.cache for each in on_node if each.about.cache is not None}:
            yield _cache(node, room)


def _cache(node: str, room: CacheRoom) -> Finding:
    text = (
        f"node {node}: {room.directory} has {room.used_bytes / _MIB:.0f} of at most {room.max_bytes / _MIB:.0f} MiB of "
        f"models, and its disk {room.free_bytes / _GIB:.1f} GiB free"
    )
    if room.free_bytes < LEAST_FREE_BYTES:
        return Finding("cache", Severity.WRONG, f"{text}: no more models can come; free some of the disk")
    if room.used_bytes + room.free_bytes < room.max_bytes:
        return Finding("cache", Severity.NOTE, f"{text}: the disk is full before the cache is; lower cache_mb")
    return Finding("cache", Severity.OK, text)
