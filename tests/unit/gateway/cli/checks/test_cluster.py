"""The findings about worker servers: what is wrong, what is worth a note, and what to do."""

import argparse
import re

import msgspec
import pytest

from sluice.gateway.cli.checks import cluster as cluster_checks
from sluice.gateway.cli.checks.cluster import Answer, Place, cluster_findings, findings_of, places_of
from sluice.gateway.config.ray_settings import RaySettings
from sluice.gateway.config.remote_settings import DnsSettings, PartitionSettings, RemoteClass
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.server.limits import Finding, Severity
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.about import About, CacheRoom, Survey
from sluice.models.errors import ConfigError, PartitionError

MS, MIB, GIB = 1_000_000, 1 << 20, 1 << 30
ROOM = CacheRoom("/cache", 512 * MIB, 1024 * MIB, 20 * GIB)
W0 = About(server_version(), "w0", "n1", "cpu2", "", "gateway-a", 0, (0, 1), ("m:1",), ROOM)
W1 = msgspec.structs.replace(W0, name="w1", node="n2", cores=(0, 1), holder="", models=(), cache=None)


def surveyed(about: About, url: str = "10.0.0.5:9001", trip_ns: int = MS // 4, ahead_ns: int = 0) -> Survey:
    return Survey(url, about, trip_ns, ahead_ns, 1.2e9, 0.9e9)


def findings(*answers: Answer, kind: str = "cpu2") -> list[Finding]:
    places = [Place(f"10.0.0.{5 + index}:9001", kind, "class edge") for index in range(len(answers))]
    return list(findings_of(places, answers))


def of_part(part: str, *answers: Answer, kind: str = "cpu2") -> list[tuple[Severity, str]]:
    return [(each.severity, each.text) for each in findings(*answers, kind=kind) if each.part == part]


def test_a_cluster_in_order_has_a_line_for_each_worker_node_and_cache() -> None:
    found = findings(surveyed(W0), surveyed(W1, "10.0.0.6:9001"))
    assert {each.severity for each in found} == {Severity.OK}
    assert [(each.part, each.text) for each in found] == [
        ("workers", "w0 on n1 (10.0.0.5:9001): cpu2, cores 0,1, 1 model, leased by gateway-a"),
        ("workers", "w1 on n2 (10.0.0.6:9001): cpu2, cores 0,1, 0 models, free"),
        ("versions", f"all workers have version {server_version()}"),
        ("links", "node n1: round trip 0.25 ms, 1200 MB/s there, 900 MB/s back"),
        ("links", "node n2: round trip 0.25 ms, 1200 MB/s there, 900 MB/s back"),
        ("clocks", "node n1: its clock is 0.0 ms ahead of this one, within 0.1 ms"),
        ("clocks", "node n2: its clock is 0.0 ms ahead of this one, within 0.1 ms"),
        ("leases", "2 workers: gateway gateway-a has 1, 1 is free"),
        ("cache", "node n1: /cache has 512 of at most 1024 MiB of models, and its disk 20.0 GiB free"),
    ]


def test_another_version_is_named_with_both() -> None:
    other = msgspec.structs.replace(W0, version="9.9.9")
    expected = (
        f"w0 on n1 (10.0.0.5:9001) has version 9.9.9, and this is {server_version()}: a gateway of this "
        "version refuses it; install the same version on both"
    )
    assert of_part("versions", surveyed(other)) == [(Severity.WRONG, expected)]


def test_another_kind_is_named_with_both() -> None:
    expected = "w0 on n1 (10.0.0.5:9001): it is a cpu2, and class edge expects cpu4: gateways refuse it"
    assert of_part("workers", surveyed(W0), kind="cpu4") == [(Severity.WRONG, expected)]
    ((severity, _),) = of_part("workers", surveyed(W0), kind="")
    assert severity is Severity.OK, "an address of --workers may have any kind"


def test_a_worker_that_cannot_work_says_why() -> None:
    down = msgspec.structs.replace(W0, state="the worker process is not up: it ended with status 1")
    ((severity, text),) = of_part("workers", surveyed(down))
    assert (severity, text.endswith("the worker process is not up: it ended with status 1")) == (Severity.WRONG, True)


def test_workers_of_a_node_that_share_cores_disturb_each_other() -> None:
    neighbour = surveyed(msgspec.structs.replace(W0, cores=(1, 2)), "10.0.0.5:9002")
    text = "node n1: w0 (10.0.0.5:9001) and w0 (10.0.0.5:9002) share the cores 1: they slow each other down; give each"
    ((severity, found),) = of_part("cores", surveyed(W0), neighbour)
    assert (severity, found) == (Severity.WRONG, f"{text} its own")
    assert of_part("cores", surveyed(W0), surveyed(W1)) == [], "equal numbers on two nodes are different cores"


@pytest.mark.parametrize(
    ("ahead_ns", "severity", "text"),
    [
        (-99 * MS, Severity.OK, "its clock is 99.0 ms behind this one"),
        (101 * MS, Severity.NOTE, "log lines will seem out of order; batches need no clock"),
        (61_000 * MS, Severity.WRONG, "certificates may count as expired; set it by NTP"),
    ],
)
def test_clocks_that_differ(ahead_ns: int, severity: Severity, text: str) -> None:
    ((found, said),) = of_part("clocks", surveyed(W0, ahead_ns=ahead_ns))
    assert (found, text in said) == (severity, True)


def test_slow_links_are_noted() -> None:
    ((severity, text),) = of_part("links", surveyed(W0, trip_ns=8 * MS))
    assert (severity, text.endswith(": each batch takes that much longer")) == (Severity.NOTE, True)
    ((severity, text),) = of_part("links", surveyed(W0)._replace(bytes_per_s_from=1e6))
    assert (severity, text.endswith(": large tensors take long on this link")) == (Severity.NOTE, True)


def test_the_nearest_worker_of_a_node_speaks_for_it() -> None:
    near, far = surveyed(W0, trip_ns=MS // 2, ahead_ns=MS), surveyed(W0, trip_ns=9 * MS, ahead_ns=9 * MS)
    assert of_part("clocks", near, far) == [
        (Severity.OK, "node n1: its clock is 1.0 ms ahead of this one, within 0.2 ms")
    ]


def test_workers_without_a_gateway_are_noted() -> None:
    assert of_part("leases", surveyed(W1)) == [(Severity.NOTE, "1 worker: 1 is free")]


@pytest.mark.parametrize(
    ("free_bytes", "severity", "text"),
    [
        (100 * MIB, Severity.WRONG, "no more models can come; free some of the disk"),
        (300 * MIB, Severity.NOTE, "the disk is full before the cache is; lower cache_mb"),
        (20 * GIB, Severity.OK, "20.0 GiB free"),
    ],
)
def test_caches_without_room(free_bytes: int, severity: Severity, text: str) -> None:
    about = msgspec.structs.replace(W0, cache=msgspec.structs.replace(ROOM, free_bytes=free_bytes))
    assert [(found, said.endswith(text)) for found, said in of_part("cache", surveyed(about))] == [(severity, True)]


def test_the_workers_of_a_class_are_those_of_its_addresses() -> None:
    listed = RemoteClass("edge", "cpu2", urls=("a:1", "b:1"))
    assert places_of(listed) == ([Place("a:1", "cpu2", "class edge"), Place("b:1", "cpu2", "class edge")], [])


def test_a_name_is_looked_up_and_what_it_lacks_is_said() -> None:
    named = RemoteClass("edge", "cpu2", dns=DnsSettings("workers.test", 9001, 1))

    def fails(name: str, port: int) -> list[str]:
        raise OSError("no server of DNS answers")

    places, findings = places_of(named, lambda name, port: ["a:1", "b:1"])
    assert [each.url for each in places] == ["a:1", "b:1"]
    assert [each.text for each in findings] == [
        "class edge: workers.test has 2 addresses, but dns.max allows 1 partitions"
    ]
    ((missing,), (unknown,)) = places_of(named, lambda name, port: [])[1], places_of(named, fails)[1]
    assert missing.text == "class edge: workers.test has no addresses; check the name, and that workers are ready"
    assert unknown.text.startswith("class edge: workers.test cannot be looked up: no server of DNS answers")
    assert (missing.severity, unknown.severity) == (Severity.WRONG, Severity.WRONG)


def test_workers_of_ray_are_left_to_a_running_gateway() -> None:
    places, (finding,) = places_of(RemoteClass("edge", ray=RaySettings(count=1)))
    assert (places, finding.severity) == ([], Severity.NOTE)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--cacert", "--cert", "--key"):
        parser.add_argument(name, default="")
    cluster_checks.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster"], "--cluster: expected --workers, or --config with remote partitions"),
        (["--workers", "10.0.0.5"], "--workers: expected addresses such as 10.0.0.5:9001, got '10.0.0.5'"),
        (["--workers", ","], "--workers: expected at least one address"),
        (["--workers", "a:1", "--key-file", "/nowhere"], "the key file /nowhere cannot be read"),
    ],
)
def test_wrong_options_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        list(cluster_findings(options(*words), ServerConfig()))


def test_the_workers_of_a_configuration_are_asked_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def survey(url: str, key: str, *_: object) -> Survey:
        asked.append((url, key))
        return surveyed(W0, url)

    monkeypatch.setattr(cluster_checks, "survey", survey)
    monkeypatch.setattr(cluster_checks, "read_key", lambda path: f"key in {path}")
    edge = RemoteClass("edge", "cpu2", urls=("10.0.0.5:9001",))
    config = ServerConfig(partitions=PartitionSettings(remote=(edge,), key_file="/key"))
    found = list(cluster_findings(options("--cluster"), config))
    assert asked == [("10.0.0.5:9001", "key in /key")]
    assert {each.severity for each in found} == {Severity.OK}


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("it cannot be reached: Connection refused", "is `sluice worker` running there, and may it be reached?"),
        ("the worker server wants a key, in the metadata sluice-worker-key", "give both sides the same key_file"),
        (
            "it cannot be reached: Hostname Verification Check failed.",
            "give the name in its certificate as server_name",
        ),
        ("it cannot be reached: its host cannot be looked up: Domain name not found", "check the name, and the DNS of"),
        ("it cannot be reached: Socket closed", "one side uses TLS and the other does not, or it refuses the"),
    ],
)
def test_the_reason_says_what_to_do(reason: str, hint: str) -> None:
    ((_, text),) = of_part("workers", PartitionError(reason))
    assert text.startswith(f"10.0.0.5:9001 of class edge: {reason}; {hint}")
