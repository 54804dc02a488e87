import re
from pathlib import Path

import pytest

from sluice.batcher.planner.exact import plan_exact
from sluice.batcher.planner.registry import DEFAULT, path_planner, path_planners, planner_named
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain, realistic_problem

DOCUMENT = (Path(__file__).parents[4] / "docs" / "operate" / "planning.md").read_text(encoding="utf-8")
SEVEN = ["aquatope", "brute_force", "esg", "exact", "fast_gshare", "infless", "orion"]


def test_the_planners_of_the_room_are_known_by_name() -> None:
    assert list(path_planners()) == SEVEN
    assert all(planner.description for planner in path_planners().values())
    assert planner_named(DEFAULT) is plan_exact


def test_every_planner_is_documented_with_its_settings() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", DOCUMENT, re.MULTILINE))
    for planner in path_planners().values():
        settings = planner.settings()
        assert rows[planner.name].startswith(f"{planner.description} |")
        for key in settings.__struct_fields__:
            assert f"`{key}` ({getattr(settings, key)})" in rows[planner.name]


def test_a_planner_has_its_own_settings() -> None:
    problem = realistic_problem(1, chain(3), slack=0.2)
    assert planner_named("orion")(problem) != []
    assert planner_named("orion", {"max_steps": "0"})(problem) == []


def test_a_seed_gives_the_same_answer_again() -> None:
    problem = realistic_problem(1, chain(3))
    first, second = (planner_named("aquatope", {"seed": 7})(problem) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("magic", {}, "planner magic: expected one of aquatope, brute_force, esg"),
        ("esg", {"seed": 1}, "planner esg: unknown setting seed; expected none"),
        ("orion", {"steps": "1"}, "planner orion: unknown setting steps; expected max_steps"),
        ("orion", {"max_steps": "few"}, r"planner orion: Expected `int`, got `str` - at `\$.max_steps`"),
    ],
)
def test_what_is_wrong_is_named(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planner_named(name, settings)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"planner exact: registered twice"):
        path_planner("exact", "the least cost")(plan_exact)
