import pytest

from sluice.batcher.interface.planner_config import PlannerConfig, Replan
from sluice.batcher.settings.planner import planner_settings
from sluice.batcher.settings.scheduling import ServingSettings, convert_settings


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("esg", PlannerConfig("esg")),
        ({"name": "esg"}, PlannerConfig("esg")),
        ({"name": "orion", "replan": "once", "time_limit_ms": 20}, PlannerConfig("orion", Replan.ONCE, 0, 20)),
    ],
)
def test_a_planner_is_a_name_or_settings(written: object, expected: PlannerConfig) -> None:
    settings = convert_settings({"planner": written}, ServingSettings, "sluice.yaml")
    assert planner_settings(settings.planner).config() == expected


def test_the_planner_is_exact_unless_settings_name_another() -> None:
    assert planner_settings(ServingSettings().planner).config() == PlannerConfig("exact")
