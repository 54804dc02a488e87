"""Settings of autoscaling, as users write them and as the scheduler takes them."""

import re

import pytest

from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.settings.scaling import ScaleSettings
from tests.support.scheduling.builders import S

SLOTS = ("edge-0", "edge-1", "edge-2")


def test_all_partitions_of_the_class_may_be_up_and_one_stays() -> None:
    assert ScaleSettings().scaled("edge", SLOTS) == ScaledClass("edge", SLOTS, 1, 3)


def test_settings_become_those_of_the_scheduler() -> None:
    settings = ScaleSettings(min=2, max=3, target=0.5, start_s=4)
    assert settings.scaled("edge", SLOTS) == ScaledClass("edge", SLOTS, 2, 3, target=0.5, start_ns=4 * S)
    assert settings.scaled("edge", SLOTS).initial == 2


def test_a_class_that_goes_to_zero_begins_there() -> None:
    scaled = ScaleSettings(to_zero=True).scaled("edge", SLOTS)
    assert (scaled.least, scaled.initial, scaled.to_zero) == (0, 0, True)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"min": -1}, "min: expected at least 0, got -1"),
        ({"max": 0}, "max: expected at least 1, got 0"),
        ({"min": 3, "max": 2}, "max: expected at least 3, got 2"),
        ({"min": 1, "to_zero": True}, "to_zero: expected a min of 0 beside it, got 1"),
        ({"target": 0}, "target: expected a number above 0 and at most 1, got 0"),
        ({"target": 1.1}, "target: expected a number above 0 and at most 1, got 1.1"),
        ({"start_s": -1}, "start_s: expected a finite number of at least 0, got -1"),
        ({"start_s": float("inf")}, "start_s: expected a finite number of at least 0, got inf"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        ScaleSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("settings", "name"), [(ScaleSettings(min=4), "min"), (ScaleSettings(max=4), "max")])
def test_numbers_fit_the_class(settings: ScaleSettings, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected at most the 3 partitions of the class, got 4"):
        settings.check(3)
