from pathlib import Path

import pytest

from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.settings.scheduling import PriceSettings
from sluice.gateway.config.configured_partitions import remote_config
from sluice.gateway.config.remote_settings import RemoteClass, is_address
from sluice.gateway.config.server_config import ServerConfig, read_config
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S
from sluice.mps.partitions.partition import CpuPartition


def _read(tmp_path: Path, text: str) -> ServerConfig:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return read_config(path)


def _refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        _read(tmp_path, text)
    return str(refused.value).removeprefix(f"{tmp_path}/")


def test_each_slot_of_a_class_is_a_partition_of_its_kind(tmp_path: Path) -> None:
    config = _read(
        tmp_path,
        "partitions:\n"
        "  local: [{name: here, cores: [0]}]\n"
        "  remote:\n"
        "    - {name: edge, kind: cpu2, urls: ['10.0.0.5:9001', '[::1]:9001'], memory_mb: 1 GiB, price: 3600}\n",
    )
    assert config.local_partitions == (CpuPartition("here", (0,)),)
    (edge,) = config.remote_classes
    assert edge.slots == ("edge-0", "edge-1")
    slot = remote_config(config, edge, "edge-1", ("digits:1",))
    assert (slot.name, slot.kind, slot.price, slot.memory_bytes, slot.models) == (
        "edge-1",
        "cpu2",
        1.0,
        1 << 30,
        ("digits:1",),
    )


def test_a_mapping_without_local_has_no_partitions_of_this_machine(tmp_path: Path) -> None:
    config = _read(tmp_path, "partitions: {remote: [{name: edge, kind: cpu1, urls: ['a:1']}]}")
    assert config.local_partitions == ()


@pytest.mark.parametrize("given", ["2", "auto", ""])
def test_other_forms_are_partitions_of_this_machine(tmp_path: Path, given: str) -> None:
    config = _read(tmp_path, f"partitions: {given}")
    assert config.local_partitions == config.partitions
    assert config.remote_classes == ()


def test_ray_is_short_for_a_class_of_that_name(tmp_path: Path) -> None:
    config = _read(tmp_path, "partitions: {ray: {min: 1, max: 3, resources: {CPU: 2}}}")
    (ray,) = config.remote_classes
    assert (ray.name, ray.profile_kind, len(ray.slots)) == ("ray", "cpu2", 3)


def test_the_number_of_partitions_may_follow_the_load(tmp_path: Path) -> None:
    text = "partitions: {remote: [{name: edge, kind: cpu1, urls: ['a:1', 'b:1'], scale: {to_zero: true, start_s: 3}}]}"
    (edge,) = _read(tmp_path, text).remote_classes
    assert edge.scaled == ScaledClass("edge", ("edge-0", "edge-1"), 0, 2, to_zero=True, start_ns=3 * NS_PER_S)
    (fixed,) = _read(tmp_path, "partitions: {remote: [{name: edge, kind: cpu1, urls: ['a:1']}]}").remote_classes
    assert fixed.scaled is None


@pytest.mark.parametrize(
    ("ray", "least"), [("{min: 1, max: 3}", 1), ("{min: 0, max: 3}", 0), ("{max: 3}", 0), ("{count: 3}", None)]
)
def test_the_bounds_of_ray_are_those_of_the_autoscaler(tmp_path: Path, ray: str, least: int | None) -> None:
    (given,) = _read(tmp_path, f"partitions: {{ray: {ray}}}").remote_classes
    slots = ("ray-0", "ray-1", "ray-2")
    expected = None if least is None else ScaledClass("ray", slots, least, 3, to_zero=not least)
    assert given.scaled == expected


@pytest.mark.parametrize(
    ("kind", "hour"), [("cpu2", 0.2), ("cpu2/x3", 0.2), ("mps-25", 1.0), ("mig-7g.80gb+c2", 4.2)], ids=str
)
def test_a_partition_costs_what_one_of_this_machine_would(kind: str, hour: float) -> None:
    prices = PriceSettings(core_hour=0.1, gpu_hour=4.0)
    assert RemoteClass("edge", kind, urls=("a:1",)).price_per_second(prices) == pytest.approx(hour / 3600)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}", "partitions: expected local partitions, remote ones, or ray, got none"),
        ("{remte: []}", "partitions: Object contains unknown field `remte`"),
        ("{remote: 3}", "partitions.remote: Expected `array`, got `int`"),
        ("{remote: [{name: edge, kind: cpu1}]}", "expected exactly one of urls, dns and ray, got none"),
        ("{remote: [{name: edge, knd: cpu1}]}", "partitions.remote[0]: Object contains unknown field `knd`"),
        ("{remote: [{name: edge, urls: ['a:1']}]}", "expected a kind such as cpu1"),
        ("{remote: [{name: edge, kind: cpux, urls: ['a:1']}]}", "got 'cpux'"),
        ("{remote: [{name: 'a b', kind: cpu1, urls: ['a:1']}]}", "partitions.remote[0]: name: expected up to 63"),
        ("{remote: [{name: edge, kind: cpu1, urls: []}]}", "urls: expected 1 to 1024, got 0"),
        ("{remote: [{name: edge, kind: cpu1, urls: ['a']}]}", "expected urls such as 10.0.0.5:9001"),
        ("{remote: [{name: edge, kind: cpu1, urls: ['a:1', 'a:1']}]}", "expected each url once"),
        ("{remote: [{name: edge, kind: cpu1, urls: ['a:1'], price: -1}]}", "expected a finite price of at least 0"),
        ("{remote: [{name: edge, kind: cpu1, urls: ['a:1'], memory_mb: 0}]}", "expected a finite memory_mb above 0"),
        ("{remote: [{name: edge, kind: cpu1, dns: {name: w, port: 0, max: 1}}]}", "dns.port: expected a port"),
        ("{remote: [{name: edge, kind: cpu1, dns: {name: '', port: 1, max: 1}}]}", "dns.name: expected a host name"),
        ("{remote: [{name: edge, kind: cpu1, dns: {name: w, port: 1, max: 0}}]}", "dns.max: expected 1 to 1024"),
        (
            "{remote: [{name: edge, kind: cpu1, urls: ['a:1'], scale: {max: 2}}]}",
            "scale.max: expected at most the 1 partitions of the class, got 2",
        ),
        (
            "{remote: [{name: edge, kind: cpu1, urls: ['a:1'], scale: {to_zero: true, min: 1}}]}",
            "to_zero: expected a min of 0 beside it, got 1",
        ),
        (
            "{remote: [{name: edge, ray: {min: 1, max: 2}, scale: {min: 1}}]}",
            "expected min and max in scale or in ray, got both",
        ),
        (
            "{remote: [{name: edge, kind: mig-2g.20gb+c4, ray: {count: 1, resources: {mig-2g.20gb: 1}}}]}",
            "expected a kind without host cores, since workers on GPUs in Ray may use all, got 'mig-2g.20gb+c4'",
        ),
        (
            "{ray: {count: 1}, remote: [{name: ray, kind: cpu1, urls: ['a:1']}]}",
            "expected each name of a class once, got ray twice",
        ),
        (
            "{remote: [{name: a, kind: cpu1, dns: {name: w, port: 1, max: 1024}}, "
            "{name: b, kind: cpu1, urls: ['a:1']}]}",
            "expected at most 1024 slots in all",
        ),
        (
            "{local: [{name: edge-0, cores: [0]}], remote: [{name: edge, kind: cpu1, urls: ['a:1']}]}",
            "edge-0 is the name of a local partition already",
        ),
    ],
)
def test_wrong_settings_are_named_with_their_place(tmp_path: Path, given: str, message: str) -> None:
    refusal = _refused(tmp_path, f"partitions: {given}")
    assert refusal.startswith("server.yaml:1: ")
    assert message in refusal


@pytest.mark.parametrize("text", ["a:1", "10.0.0.5:9001", "[::1]:9001", "worker.example:65535"])
def test_addresses(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:0", "a:65536", "http://a:1", "::1:1", "[]:1", "a:x"])
def test_what_is_no_address(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(("kind", "is_cpu"), [("cpu4/x2", True), ("mig-1g.10gb", False), ("mps-25", False)])
def test_partitions_of_cores_and_of_gpus_differ(kind: str, is_cpu: bool) -> None:
    assert RemoteClass("edge", kind, urls=("a:1",)).is_cpu is is_cpu
