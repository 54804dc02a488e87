import pytest

from sluice.gateway.cluster.ray import settle
from sluice.gateway.cluster.ray.placement import Node
from sluice.gateway.cluster.ray.settle import with_ray_settled
from sluice.gateway.config.server_config import ServerConfig, convert_config
from sluice.models.errors import ConfigError

NODES = (Node("1", "n1", "10.0.0.1", "h1", {"CPU": 3.0}),)


@pytest.fixture(autouse=True)
def _ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "check_extra", lambda: None)
    monkeypatch.setattr(settle, "cluster_nodes", lambda address: NODES)


def config(**partitions: object) -> ServerConfig:
    return convert_config({"partitions": partitions}, "sluice.yaml")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expected = r"partitions: ray needs Ray, which is not installed; install it with pip install 'sluice-gateway\[ray\]'"
    with pytest.raises(ConfigError, match=expected):
        with_ray_settled(config(ray={}, key_file="k"))


def test_a_class_without_settings_has_a_worker_for_each_core_of_the_cluster() -> None:
    settled = with_ray_settled(config(ray={}, key_file="k"))
    assert [each.slots for each in settled.remote_classes] == [("ray-0", "ray-1", "ray-2")]
    assert [each.profile_kind for each in settled.remote_classes] == ["cpu1"]


def test_each_class_is_settled_by_itself() -> None:
    classes = [
        {"name": "small", "ray": {"resources": {"CPU": 1}, "nodes": ["n1"]}},
        {"name": "large", "ray": {"count": 2}},
        {"name": "far", "kind": "cpu1", "urls": ["10.0.0.9:1"]},
    ]
    settled = with_ray_settled(config(remote=classes, key_file="k"))
    assert [len(each.slots) for each in settled.remote_classes] == [3, 2, 1]


def test_a_cluster_is_not_asked_for_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(settle, "cluster_nodes")
    whole = config(ray={"count": 2, "resources": {"CPU": 1}}, key_file="k")
    assert with_ray_settled(whole) is whole
    assert with_ray_settled(ServerConfig()) == ServerConfig()


def test_workers_need_a_secret() -> None:
    with pytest.raises(ConfigError, match="partitions: ray needs key_file"):
        with_ray_settled(config(ray={"count": 1}))


def test_all_classes_are_of_one_cluster() -> None:
    classes = [{"name": name, "ray": {"count": 1, "namespace": name}} for name in ("a", "b")]
    with pytest.raises(ConfigError, match="expected the same address and namespace in all classes"):
        with_ray_settled(config(remote=classes, key_file="k"))


def test_a_node_that_the_cluster_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match="partitions: ray: ray: nodes: expected nodes of the cluster, which are n1"):
        with_ray_settled(config(ray={"nodes": ["n2"]}, key_file="k"))
