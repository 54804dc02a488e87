import re

import msgspec
import pytest

from sluice.gateway.deployment.registry import ModelRegistry, VersionStatus
from sluice.models.errors import BackendUnavailable, ModelNotFound, UnsupportedRequest, VersionNotFound
from sluice.models.pipelines.pipeline import Pipeline, Stage
from sluice.models.repository.scan import BrokenEntry

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


def new_catalogue() -> ModelRegistry:
    return ModelRegistry("1.2.3", PIPELINES, BROKEN, WORKERS)


def test_it_tells_whose_answers_may_be_given_again() -> None:
    cached = [msgspec.structs.replace(each, response_cache=each.version == 2) for each in PIPELINES]
    assert ModelRegistry("1.2.3", cached, BROKEN, WORKERS).caching() == ["mlp"]
    assert new_catalogue().caching() == []


def test_a_pipeline_is_served_once_a_worker_has_loaded_all_its_models() -> None:
    catalogue = new_catalogue()
    with pytest.raises(BackendUnavailable, match="'mlp' cannot be served: model mlp:1 is still loading"):
        catalogue.pipeline("mlp", "1")
    catalogue.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert catalogue.pipeline("mlp", "1") is PIPELINES[0]
    assert catalogue.ready("mlp", "1")
    assert not catalogue.ready("cascade", "")
    with pytest.raises(BackendUnavailable, match="model big:1 is still loading"):
        catalogue.pipeline("cascade", "")


def test_a_stage_with_variants_needs_one_of_them() -> None:
    family = Pipeline("any", 1, (), (), (Stage("any", {}, model="big:1", variants=("big:1", "mlp:1")),), {}, 8)
    catalogue = ModelRegistry("1.2.3", [family], [], WORKERS)
    catalogue.model_load_failed("big:1", "no room")
    with pytest.raises(BackendUnavailable, match="'any' cannot be served: model mlp:1 is still loading"):
        catalogue.pipeline("any", "")
    assert catalogue.broken("any") is None
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    assert catalogue.pipeline("any", "") is family
    assert catalogue.ready("any", "")
    catalogue.partition_lost("cpu0")
    assert not catalogue.ready("any", "")


def test_a_stage_of_which_no_variant_loaded_cannot_be_served() -> None:
    family = Pipeline("any", 1, (), (), (Stage("any", {}, model="big:1", variants=("big:1", "mlp:1")),), {}, 8)
    catalogue = ModelRegistry("1.2.3", [family], [], WORKERS)
    catalogue.partition_ready("cpu0", [], {"big:1": "no room", "mlp:1": "torn"})
    assert catalogue.broken("any") == "model big:1 did not load: no room"


def test_no_version_means_the_latest_that_loaded() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert catalogue.pipeline("mlp", "") is PIPELINES[1]
    passing_over = new_catalogue()
    passing_over.partition_ready("cpu0", ["mlp:1"], {"mlp:2": "out of memory"})
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
    catalogue = new_catalogue()
    for ask in (catalogue.pipeline, catalogue.ready):
        with pytest.raises(error, match="^" + re.escape(message)):
            ask(name, version)


def test_a_model_that_one_worker_lost_stays_served_but_is_ready_only_while_one_is_up() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    catalogue.partition_lost("cpu0")
    assert catalogue.pipeline("mlp", "1") is PIPELINES[0]
    assert not catalogue.ready("mlp", "1")
    catalogue.partition_ready("cpu1", ["mlp:1"], {})
    assert catalogue.ready("mlp", "1")


def test_the_server_gets_ready_with_every_worker_and_stays_so_with_any_even_if_a_model_failed() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1"], {"big:1": "too big"})
    assert not catalogue.server_ready()
    catalogue.partition_ready("cpu1", ["mlp:1"], {"big:1": "too big"})
    assert catalogue.server_ready()
    catalogue.partition_lost("cpu0")
    assert catalogue.server_ready()
    catalogue.partition_lost("cpu1")
    assert not catalogue.server_ready()
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    assert catalogue.server_ready()
    catalogue.draining = True
    assert not catalogue.server_ready()
    assert not catalogue.ready("mlp", "1")


def test_the_server_is_not_ready_when_nothing_that_was_to_be_served_did_load() -> None:
    catalogue = new_catalogue()
    for worker in WORKERS:
        catalogue.partition_ready(worker, [], dict.fromkeys(("mlp:1", "mlp:2", "big:1"), "no driver"))
    assert not catalogue.server_ready()
    catalogue.model_loaded("cpu0", "mlp:1")
    assert catalogue.server_ready()
    empty = ModelRegistry("1.2.3", [], [], ["cpu0"])
    empty.partition_ready("cpu0", [], {})
    assert empty.server_ready()
    unreadable = ModelRegistry("1.2.3", [], [BrokenEntry("torn", None, "torn/model.onnx: not a model")], ["cpu0"])
    unreadable.partition_ready("cpu0", [], {})
    assert not unreadable.server_ready()


def test_a_strict_server_is_ready_while_all_is_served() -> None:
    strict = ModelRegistry("1.2.3", PIPELINES, [], ["cpu0"], strict=True)
    strict.partition_ready("cpu0", ["mlp:1", "mlp:2"], {})
    assert not strict.server_ready()
    strict.model_loaded("cpu0", "big:1")
    assert strict.server_ready()
    strict.set_aside("cascade", {"1": (VersionStatus.UNAVAILABLE, "unloaded")})
    assert strict.server_ready()
    strict.set_aside("new", {"": (VersionStatus.UNAVAILABLE, "new/model.onnx: not a model")})
    assert not strict.server_ready()
    strict.give_up("new")
    assert strict.server_ready()
    broken = ModelRegistry("1.2.3", PIPELINES, BROKEN, ["cpu0"], strict=True)
    broken.partition_ready("cpu0", ["mlp:1", "mlp:2", "big:1"], {})
    assert not broken.server_ready()
    broken.give_up("mlp")  # other versions are served
    broken.give_up("torn")
    assert [broken.served("mlp"), "torn" in broken, broken.server_ready()] == [["1", "2"], False, False]
    torn = ModelRegistry("1.2.3", PIPELINES, BROKEN[:1], ["cpu0"], strict=True)
    torn.partition_ready("cpu0", ["mlp:1", "mlp:2", "big:1"], {})
    torn.give_up("torn")
    assert torn.server_ready()


def test_a_model_of_a_kind_that_is_not_served_is_told_from_one_that_is_broken() -> None:
    kind = BrokenEntry("many", None, "many/config.pbtxt: a request has exactly one answer", unsupported=True)
    catalogue = ModelRegistry("1.2.3", [], [*BROKEN, kind], WORKERS)
    with pytest.raises(UnsupportedRequest, match=r"'many' cannot be served: .*: a request has exactly"):
        catalogue.pipeline("many", "")
    with pytest.raises(BackendUnavailable, match="torn"):
        catalogue.pipeline("torn", "")
    catalogue.set_aside("torn", {"": (VersionStatus.UNAVAILABLE, "it keeps state")}, unsupported=True)
    with pytest.raises(UnsupportedRequest, match="'torn' is not at ready state: it keeps state"):
        catalogue.pipeline("torn", "")
    catalogue.set_aside("torn", {"": (VersionStatus.UNAVAILABLE, "not a model")})
    with pytest.raises(BackendUnavailable, match="'torn' is not at ready state: not a model"):
        catalogue.pipeline("torn", "")


def test_versions_are_served_that_have_been_loaded() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1"], {"mlp:2": "out of memory"})
    assert (catalogue.served("mlp"), catalogue.versions("mlp")) == (["1"], ["1", "2"])


def test_the_server_gets_ready_without_a_partition_that_we_do_not_start() -> None:
    catalogue = new_catalogue()
    catalogue.partition_unreachable("cpu1")
    assert not catalogue.server_ready()
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    assert catalogue.server_ready()
    catalogue.partition_ready("cpu1", ["mlp:1", "big:1"], {})
    assert catalogue.ready("cascade", "")


def test_models_that_move_stay_ready_and_those_that_fail_elsewhere_stay_served() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    catalogue.partition_ready("cpu1", ["big:1"], {})
    assert catalogue.ready("cascade", "")
    catalogue.model_loaded("cpu1", "mlp:1")
    catalogue.model_unloaded("cpu0", "mlp:1")
    assert catalogue.ready("cascade", "")
    catalogue.model_load_failed("mlp:1", "out of memory")
    assert catalogue.ready("cascade", "")
    assert catalogue.pipeline("mlp", "1") is PIPELINES[0]
    catalogue.partition_lost("cpu1")
    assert not catalogue.ready("cascade", "")
    catalogue.partition_ready("cpu1", ["big:1", "mlp:1"], {})
    assert catalogue.ready("cascade", "")


def test_a_model_that_is_first_loaded_by_a_worker_in_service_is_served_from_then_on() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    with pytest.raises(BackendUnavailable, match="model mlp:2 is still loading"):
        catalogue.pipeline("mlp", "2")
    catalogue.model_load_failed("mlp:2", "out of memory")
    assert catalogue.pipeline("mlp", "") is PIPELINES[0]
    with pytest.raises(BackendUnavailable, match="model mlp:2 did not load: out of memory"):
        catalogue.pipeline("mlp", "2")
    catalogue.model_loaded("cpu0", "mlp:2")
    assert catalogue.pipeline("mlp", "") is PIPELINES[1]
    assert catalogue.ready("mlp", "2")


def test_a_model_on_demand_is_let_in_before_it_is_loaded_and_not_ready_until_then() -> None:
    catalogue = new_catalogue()
    catalogue.partition_ready("cpu0", ["mlp:1"], {})
    catalogue.model_on_demand("mlp:2")
    assert catalogue.pipeline("mlp", "") is PIPELINES[1]
    assert not catalogue.ready("mlp", "2")
    catalogue.model_loaded("cpu0", "mlp:2")
    assert catalogue.ready("mlp", "2")


def test_names_versions_and_reasons_are_listed() -> None:
    catalogue = new_catalogue()
    assert catalogue.names() == ["cascade", "mlp", "torn"]
    assert (catalogue.versions("mlp"), catalogue.versions("torn")) == (["1", "2"], [])
    assert catalogue.broken("cascade") is None
    catalogue.partition_ready("cpu0", ["mlp:1", "mlp:2"], {"big:1": "too big"})
    assert catalogue.broken("cascade") == "model big:1 did not load: too big"
    assert catalogue.broken("mlp") == "mlp/3/model.onnx: not a model"
    assert catalogue.broken("absent") is None
