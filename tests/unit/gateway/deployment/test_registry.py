import re
from collections.abc import Sequence

import msgspec
import pytest

from sluice.gateway.deployment.registry import UNLOADED, ModelRegistry, VersionStatus
from sluice.models.errors import BackendUnavailable, ModelNotFound, RequestError, UnsupportedRequest, VersionNotFound
from sluice.models.pipelines.pipeline import Pipeline, Stage
from sluice.models.repository.scan import BrokenEntry
from tests.support.gateway.inventory import PlayedInventory

WORKERS = ("cpu0", "cpu1")


def pipeline(name: str, version: int, *models: str) -> Pipeline:
    stages = tuple(Stage(f"stage{index}", {}, model=model) for index, model in enumerate(models))
    return Pipeline(name, version, (), (), stages, {}, 8)


PIPELINES = [
    pipeline("mlp", 1, "mlp:1"),
    pipeline("mlp", 2, "mlp:2"),
    pipeline("cascade", 1, "mlp:1", "big:1"),
]
BROKEN = [
    BrokenEntry("torn", None, "torn/model.onnx: not a model"),
    BrokenEntry("mlp", 3, "mlp/3/model.onnx: not a model"),
]


def new_registry(
    pipelines: Sequence[Pipeline] = PIPELINES,
    broken: Sequence[BrokenEntry] = BROKEN,
    workers: Sequence[str] = WORKERS,
    servers: Sequence[str] = (),
    *,
    strict: bool = False,
) -> tuple[PlayedInventory, ModelRegistry]:
    inventory = PlayedInventory(*workers, servers=servers)
    return inventory, ModelRegistry("1.2.3", pipelines, broken, inventory, strict=strict)


def test_it_tells_whose_answers_may_be_given_again() -> None:
    cached = [msgspec.structs.replace(each, response_cache=each.version == 2) for each in PIPELINES]
    assert new_registry(cached)[1].caching() == ["mlp"]
    assert new_registry()[1].caching() == []


def test_a_pipeline_is_served_once_a_worker_has_loaded_all_its_models() -> None:
    inventory, registry = new_registry()
    with pytest.raises(BackendUnavailable, match="'mlp' cannot be served: model mlp:1 is still loading"):
        registry.pipeline("mlp", "1")
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert registry.pipeline("mlp", "1") is PIPELINES[0]
    assert registry.ready("mlp", "1")
    assert not registry.ready("cascade", "")
    with pytest.raises(BackendUnavailable, match="model big:1 is still loading"):
        registry.pipeline("cascade", "")


def test_a_stage_with_variants_needs_one_of_them() -> None:
    family = Pipeline("any", 1, (), (), (Stage("any", {}, model="big:1", variants=("big:1", "mlp:1")),), {}, 8)
    inventory, registry = new_registry([family], [])
    inventory.model_load_failed("cpu0", "big:1", "no room")
    with pytest.raises(BackendUnavailable, match="'any' cannot be served: model mlp:1 is still loading"):
        registry.pipeline("any", "")
    assert registry.broken("any") is None
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    assert registry.pipeline("any", "") is family
    assert registry.ready("any", "")
    inventory.partition_lost("cpu0")
    assert not registry.ready("any", "")


def test_a_stage_of_which_no_variant_loaded_cannot_be_served() -> None:
    family = Pipeline("any", 1, (), (), (Stage("any", {}, model="big:1", variants=("big:1", "mlp:1")),), {}, 8)
    inventory, registry = new_registry([family], [])
    inventory.partition_ready("cpu0", [], {"big:1": "no room", "mlp:1": "torn"})
    assert registry.broken("any") == "model big:1 did not load: no room"


def test_no_version_means_the_latest_that_loaded() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert registry.pipeline("mlp", "") is PIPELINES[1]
    inventory, passing_over = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {"mlp:2": "out of memory"})
    assert passing_over.pipeline("mlp", "") is PIPELINES[0]
    with pytest.raises(BackendUnavailable, match="model mlp:2 did not load: out of memory"):
        passing_over.pipeline("mlp", "2")


@pytest.mark.parametrize(
    ("name", "version", "error", "message"),
    [
        ("absent", "", ModelNotFound, "Request for unknown model: 'absent' is not found"),
        (
            "mlp",
            "7",
            VersionNotFound,
            "Request for unknown model: 'mlp' version 7 is not found; it has 1, 2, 3",
        ),
        ("mlp", "3", BackendUnavailable, "'mlp' cannot be served: mlp/3/model.onnx: not a model"),
        ("torn", "", BackendUnavailable, "'torn' cannot be served: torn/model.onnx: not a model"),
        ("torn", "1", BackendUnavailable, "'torn' cannot be served: torn/model.onnx: not a model"),
    ],
)
def test_what_cannot_be_served_is_explained(name: str, version: str, error: type[Exception], message: str) -> None:
    _, registry = new_registry()
    for ask in (registry.pipeline, registry.ready):
        with pytest.raises(error, match="^" + re.escape(message)):
            ask(name, version)


def test_a_model_that_one_worker_lost_stays_served_but_is_ready_only_while_one_is_up() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    inventory.partition_lost("cpu0")
    assert registry.pipeline("mlp", "1") is PIPELINES[0]
    assert not registry.ready("mlp", "1")
    inventory.partition_ready("cpu1", ["mlp:1"], {})
    assert registry.ready("mlp", "1")


def test_the_server_gets_ready_with_every_worker_and_stays_so_with_any_even_if_a_model_failed() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {"big:1": "too big"})
    assert not registry.server_ready()
    inventory.partition_ready("cpu1", ["mlp:1"], {"big:1": "too big"})
    assert registry.server_ready()
    inventory.partition_lost("cpu0")
    assert registry.server_ready()
    inventory.partition_lost("cpu1")
    assert not registry.server_ready()
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    assert registry.server_ready()
    registry.start_draining()
    assert not registry.server_ready()
    assert not registry.ready("mlp", "1")


def test_the_server_is_not_ready_when_nothing_that_was_to_be_served_did_load() -> None:
    inventory, registry = new_registry()
    for worker in WORKERS:
        inventory.partition_ready(worker, [], dict.fromkeys(("mlp:1", "mlp:2", "big:1"), "no driver"))
    assert not registry.server_ready()
    inventory.model_loaded("cpu0", "mlp:1")
    assert registry.server_ready()
    inventory, empty = new_registry([], [], ["cpu0"])
    inventory.partition_ready("cpu0", [], {})
    assert empty.server_ready()
    inventory, unreadable = new_registry([], [BrokenEntry("torn", None, "torn/model.onnx: not a model")], ["cpu0"])
    inventory.partition_ready("cpu0", [], {})
    assert not unreadable.server_ready()


def test_nobody_waits_for_what_is_no_model() -> None:
    foreign = BrokenEntry("lost+found", None, "'lost+found' is no model", foreign=True)
    inventory, strict = new_registry([], [foreign], ["cpu0"], strict=True)
    inventory.partition_ready("cpu0", [], {})
    assert strict.server_ready()
    assert strict.states("lost+found") == [("", VersionStatus.UNAVAILABLE, "'lost+found' is no model")]
    strict.list_foreign({})
    assert strict.names() == []


def test_a_strict_server_is_ready_while_all_is_served() -> None:
    inventory, strict = new_registry(PIPELINES, [], ["cpu0"], strict=True)
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert not strict.server_ready()
    inventory.model_loaded("cpu0", "big:1")
    assert strict.server_ready()
    strict.set_unavailable("cascade", {"1": (VersionStatus.UNAVAILABLE, "unloaded")})
    assert strict.server_ready()
    strict.set_unavailable("new", {"": (VersionStatus.UNAVAILABLE, "new/model.onnx: not a model")})
    assert not strict.server_ready()
    strict.forget("new")
    assert strict.server_ready()
    inventory, broken = new_registry(PIPELINES, BROKEN, ["cpu0"], strict=True)
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2", "big:1"], {})
    assert not broken.server_ready()
    broken.forget("mlp")  # other versions are served
    broken.forget("torn")
    assert [broken.served("mlp"), "torn" in broken, broken.server_ready()] == [["1", "2"], False, False]
    inventory, torn = new_registry(PIPELINES, BROKEN[:1], ["cpu0"], strict=True)
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2", "big:1"], {})
    torn.forget("torn")
    assert torn.server_ready()


def test_a_model_of_a_kind_that_is_not_served_is_distinguished_from_one_that_is_broken() -> None:
    kind = BrokenEntry("many", None, "many/config.pbtxt: a request has exactly one answer", unsupported=True)
    _, registry = new_registry([], [*BROKEN, kind], WORKERS)
    with pytest.raises(UnsupportedRequest, match=r"'many' cannot be served: .*: a request has exactly"):
        registry.pipeline("many", "")
    with pytest.raises(BackendUnavailable, match="torn"):
        registry.pipeline("torn", "")
    registry.set_unavailable("torn", {"": (VersionStatus.UNAVAILABLE, "it keeps state")}, unsupported=True)
    with pytest.raises(UnsupportedRequest, match="'torn' is not at ready state: it keeps state"):
        registry.pipeline("torn", "")
    registry.set_unavailable("torn", {"": (VersionStatus.UNAVAILABLE, "not a model")})
    with pytest.raises(BackendUnavailable, match="'torn' is not at ready state: not a model"):
        registry.pipeline("torn", "")


def test_versions_are_served_that_have_been_loaded() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {"mlp:2": "out of memory"})
    assert (registry.served("mlp"), registry.versions("mlp")) == (["1"], ["1", "2"])


def test_the_server_gets_ready_without_a_partition_that_we_do_not_start() -> None:
    inventory, registry = new_registry(workers=["cpu0"], servers=["triton"])
    inventory.partition_lost("triton", "connection refused")
    assert not registry.server_ready()
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    assert registry.server_ready()
    inventory.partition_ready("triton", ["mlp:1", "big:1"], {})
    assert registry.ready("cascade", "")


def test_models_that_move_stay_ready_and_those_that_fail_elsewhere_stay_served() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    inventory.partition_ready("cpu1", ["big:1"], {})
    assert registry.ready("cascade", "")
    inventory.model_loaded("cpu1", "mlp:1")
    inventory.model_unloaded("cpu0", "mlp:1")
    assert registry.ready("cascade", "")
    inventory.model_load_failed("cpu0", "mlp:1", "out of memory")
    assert registry.ready("cascade", "")
    assert registry.pipeline("mlp", "1") is PIPELINES[0]
    inventory.partition_lost("cpu1")
    assert not registry.ready("cascade", "")
    inventory.partition_ready("cpu1", ["big:1", "mlp:1"], {})
    assert registry.ready("cascade", "")


def test_a_model_that_is_first_loaded_by_a_worker_in_service_is_served_from_then_on() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    with pytest.raises(BackendUnavailable, match="model mlp:2 is still loading"):
        registry.pipeline("mlp", "2")
    inventory.model_load_failed("cpu0", "mlp:2", "out of memory")
    assert registry.pipeline("mlp", "") is PIPELINES[0]
    with pytest.raises(BackendUnavailable, match="model mlp:2 did not load: out of memory"):
        registry.pipeline("mlp", "2")
    inventory.model_loaded("cpu0", "mlp:2")
    assert registry.pipeline("mlp", "") is PIPELINES[1]
    assert registry.ready("mlp", "2")


def test_a_model_on_demand_is_let_in_before_it_is_loaded_and_not_ready_until_then() -> None:
    inventory, registry = new_registry()
    inventory.partition_ready("cpu0", ["mlp:1"], {})
    registry.mark_waiting("mlp:2")
    assert registry.pipeline("mlp", "") is PIPELINES[1]
    assert not registry.ready("mlp", "2")
    inventory.model_loaded("cpu0", "mlp:2")
    assert registry.ready("mlp", "2")


def test_an_only_model_needs_no_name() -> None:
    inventory, registry = new_registry()
    with pytest.raises(RequestError, match=r"this one has cascade, mlp, torn$"):
        registry.only_name()
    assert registry.serving_names() == []
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert (registry.only_name(), registry.serving_names()) == ("mlp", ["mlp"])
    assert new_registry([], BROKEN[:1])[1].only_name() == "torn"  # whose requests get the reason
    with pytest.raises(RequestError, match="this one has none"):
        new_registry([], [])[1].only_name()


def test_names_versions_and_reasons_are_listed() -> None:
    inventory, registry = new_registry()
    assert registry.names() == ["cascade", "mlp", "torn"]
    assert (registry.versions("mlp"), registry.versions("torn")) == (["1", "2"], [])
    assert registry.broken("cascade") is None
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2"], {"big:1": "too big"})
    assert registry.broken("cascade") == "model big:1 did not load: too big"
    assert registry.broken("mlp") == "mlp/3/model.onnx: not a model"
    assert registry.broken("absent") is None


def test_what_is_not_served_is_listed_with_its_reason() -> None:
    def listed(registry: ModelRegistry) -> list[tuple[str, str, str]]:
        return [each for each in registry.not_served() if each[0]]

    inventory, registry = new_registry()
    assert listed(registry) == [
        ("mlp", "3", "mlp/3/model.onnx: not a model"),
        ("mlp", "1", "model mlp:1 is still loading"),
        ("mlp", "2", "model mlp:2 is still loading"),
        ("cascade", "1", "model mlp:1 is still loading"),
        ("torn", "", "torn/model.onnx: not a model"),
    ]
    inventory.partition_ready("cpu0", ["mlp:1", "mlp:2"], {"big:1": "no room"})
    inventory.partition_ready("cpu1", ["mlp:1", "mlp:2"], {"big:1": "no room"})
    registry.list_foreign({"README.md": "it is no model"})
    registry.set_unavailable("torn", {"1": (VersionStatus.UNAVAILABLE, UNLOADED)})
    assert listed(registry) == [
        ("mlp", "3", "mlp/3/model.onnx: not a model"),
        ("cascade", "1", "model big:1 did not load: no room"),
    ]
