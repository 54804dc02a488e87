"""Settings of residency, and what they make of a spec."""

import pytest

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.residency_config import (
    Eviction,
    Footprint,
    Likelihood,
    Loading,
    OnMiss,
    Prewarm,
    ResidencyConfig,
)
from sluice.batcher.settings.residency import ResidencySettings
from sluice.batcher.settings.scheduling import ServingSettings, convert_settings
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_MS
from tests.support.scheduling.builders import ONE, cascade, model, single, spec_of


def settings(**keys: object) -> ResidencySettings:
    return convert_settings({"residency": keys}, ServingSettings, "sluice.yaml").residency


def spec() -> SchedulerSpec:
    keys = ("small:1", "large:1", "large:2@7", "other:1")
    return spec_of(
        [model(key) for key in keys], [*(single(key) for key in keys), cascade("small:1", "large:1", name="digits:1")]
    )


def test_every_setting_reaches_the_scheduler() -> None:
    given = settings(
        eviction="none",
        min_resident_ms=5,
        loads=2,
        default_load_ms=20,
        prewarm="speculative",
        path="greedy",
        min_probability=0.3,
        on_miss="stop",
    )
    assert given.config(Loading.DEMAND) == ResidencyConfig(
        Loading.DEMAND,
        Eviction.NONE,
        5 * NS_PER_MS,
        2,
        20 * NS_PER_MS,
        Prewarm.SPECULATIVE,
        Likelihood.GREEDY,
        0.3,
        on_miss=OnMiss.STOP,
    )


def test_names_are_of_models_in_all_versions_and_of_pipelines_for_all_their_models() -> None:
    applied = settings(pinned=["digits"], priorities={"large": 2, "digits": 1}).apply(spec(), {})
    assert {each.key: (each.pinned, each.priority) for each in applied.models} == {
        "small:1": (True, 1),
        "large:1": (True, 2),
        "large:2@7": (False, 2),
        "other:1": (False, 0),
    }


def test_what_was_measured_is_known_of_models() -> None:
    measured = {"small:1": {"cpu1": Footprint(100, 2, 8 * NS_PER_MS, ONE)}}
    applied = settings().apply(spec(), measured)
    assert applied.models[0].memory_on("cpu1") == 100 + 8 * 2
    assert applied.models[1].footprints == {}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loads": 0}, "expected at least 1 of loads, and finite times of at least 0"),
        ({"min_resident_ms": -1}, "expected at least 1 of loads, and finite times of at least 0"),
        ({"min_probability": 2}, "expected a min_probability from 0 to 1, got 2"),
        ({"loading": "often"}, "residency.loading: Invalid enum value 'often'"),
    ],
)
def test_wrong_settings_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**keys)
