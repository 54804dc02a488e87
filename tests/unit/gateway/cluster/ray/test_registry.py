from sluice.gateway.cluster.ray.registry import LEASE_S, ClassSpec, Registry, Renewal, WorkerInfo
from sluice.gateway.config.ray_settings import RaySettings

SPEC = ClassSpec(RaySettings(resources={"CPU": 1}, count=2, keep_s=10), 2, "key", "1.0")


def registry() -> Registry:
    """A registry with the class `edge`, which has learned of all leases that there were, none."""
    registry = Registry(100)
    assert registry.open_class("edge", SPEC, -LEASE_S) == ""
    return registry


def worker(number: int, url: str = "a:1", reason: str = "") -> WorkerInfo:
    return WorkerInfo(number, "id-1", "n1", url, reason, 0.0)


def test_a_gateway_gets_leases_with_the_workers_there() -> None:
    known = registry()
    assert known.report("edge", 1, worker(known.new_number()))
    known.wait("edge", 0, "no room")
    assert known.renew("g", "edge", 2, {}, 0.0) == Renewal(
        {0: 101, 1: 102}, {0: (0, "", "no room"), 1: (102, "a:1", "")}
    )
    assert known.renew("g", "other", 2, {}, 0.0) is None


def test_a_worker_that_was_replaced_is_to_end() -> None:
    known = registry()
    first, second = known.new_number(), known.new_number()
    assert known.report("edge", 0, worker(second, "b:1"))
    assert not known.report("edge", 0, worker(first))
    assert known.workers("edge")[0].url == "b:1"


def test_numbers_stay_above_those_that_workers_report() -> None:
    known = registry()
    known.report("edge", 0, worker(5000))
    assert known.new_number() == 5001


def test_workers_that_no_gateway_uses_are_kept_for_a_while() -> None:
    known = registry()
    known.renew("g", "edge", 1, {}, 0.0)
    assert known.unused("edge", 9.0) == [1]
    known.leave("g", 9.0)
    assert known.unused("edge", 18.0) == [1]
    assert known.unused("edge", 19.5) == [0, 1]


def test_gateways_that_share_a_class_must_agree() -> None:
    known = registry()
    known.renew("g1", "edge", 2, {}, 0.0)
    other = SPEC._replace(settings=RaySettings(resources={"CPU": 2}, count=2, keep_s=10))
    assert known.open_class("edge", other, 1.0) == (
        "partitions edge are shared with gateway g1, but differ: resources {'CPU': 2}, not {'CPU': 1}; "
        "expected equal settings, or another name or namespace"
    )
    assert "version 1.1, not 1.0" in known.open_class("edge", SPEC._replace(version="1.1"), 1.0)
    assert "another key" in known.open_class("edge", SPEC._replace(key="x"), 1.0)
    same = SPEC._replace(settings=RaySettings(address="h:1", resources={"CPU": 1}, count=2, keep_s=10))
    assert known.open_class("edge", same, 1.0) == ""


def test_new_settings_wait_until_the_workers_of_the_old_ones_have_ended() -> None:
    known = registry()
    known.report("edge", 0, worker(200))
    changed = SPEC._replace(slots=3)
    assert known.open_class("edge", changed, 0.0) == (
        "partitions edge: the workers of former settings are being ended (3 slots, not 2)"
    )
    assert known.unused("edge", 0.0) == [0, 1]
    known.forget("edge", 0)
    assert known.open_class("edge", changed, 0.0) == ""
    assert known.spec("edge") == changed


def test_people_see_who_has_which_worker() -> None:
    known = registry()
    known.renew("g", "edge", 1, {}, 0.0)
    known.report("edge", 0, worker(200))
    known.report("edge", 1, worker(201, "", "it was killed"))
    assert known.document() == {
        "gateways": {"g": {"edge": 1}},
        "partitions": [
            {"partition": "edge-0", "node": "n1", "url": "a:1", "gateway": "g", "reason": ""},
            {"partition": "edge-1", "node": "n1", "url": "", "gateway": "", "reason": "it was killed"},
        ],
    }
