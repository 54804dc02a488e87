import pathlib
import re

import msgspec
import numpy as np
import pytest

from sluice.batcher.planner.exact import plan_exact
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem, StageProblem, check_path
from sluice.batcher.planner.registry import DEFAULT, path_planner, path_planners, planner_named
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain, realistic_problem

DOCUMENT = (pathlib.Path(__file__).parents[4] / "docs" / "operate" / "planning.md").read_text(encoding="utf-8")
SEVEN = {"aquatope", "brute_force", "esg", "exact", "fast_gshare", "infless", "orion"}


def test_the_planners_of_the_room_are_known_by_name() -> None:
    assert path_planners().keys() >= SEVEN
    assert all(planner.description for planner in path_planners().values())
    assert planner_named(DEFAULT) is plan_exact


def test_every_planner_is_documented_with_its_settings() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", DOCUMENT, re.MULTILINE))
    for planner in path_planners().values():
        assert planner.name in rows, f"planner {planner.name}: no row in docs/operate/planning.md, table of planners"
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
        ("esg", {"seed": 1}, "planner esg: unknown setting seed; expected kept_paths"),
        ("orion", {"steps": "1"}, "planner orion: unknown setting steps; expected max_steps"),
        ("orion", {"max_steps": "few"}, r"planner orion: Expected `int`, got `str` - at `\$.max_steps`"),
    ],
)
def test_what_is_wrong_is_named(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planner_named(name, settings)


def test_a_name_is_registered_once() -> None:
    def other(problem: Problem, count: int = 1) -> list[Path]:
        return []

    message = f"planner exact: registered by {plan_exact.__module__} and by {__name__}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        path_planner("exact", "the least cost")(other)


class Rounds(msgspec.Struct, frozen=True):
    rounds: int = 1


def test_a_planner_is_registered_with_its_settings() -> None:
    def made(settings: Rounds) -> PathPlanner:
        return plan_exact

    with pytest.raises(ConfigError, match=r"planner made: .* without settings; expected \(problem, count\)"):
        path_planner("made", "nothing")(made)
    with pytest.raises(ConfigError, match=r"planner plain: .* with settings; expected \(settings\)"):
        path_planner("plain", "nothing", Rounds)(plan_exact)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (((0, 0), 0, 0.0), "tuple in its list; expected Path"),
        (Path((0,), 0, 0.0), "1 choices; expected 2, one a stage"),
        (Path((0, 9), 0, 0.0), "stage b: option 9; expected 0 to 1"),
        (Path((0, -1), 0, 0.0), "stage b: option -1; expected 0 to 1"),
        (Path((0, 0.5), 0, 0.0), "stage b: option 0.5; expected 0 to 1"),  # type: ignore[arg-type]
        (Path((1, 1), 0, 0.0), "its path takes 18 ms; expected at most 11 ms"),
    ],
)
def test_a_wrong_path_is_refused(path: object, message: str) -> None:
    latency_ns, cost = np.array([5_000_000, 9_000_000]), np.array([2.0, 1.0])
    stages = (StageProblem("a", latency_ns, cost), StageProblem("b", latency_ns, cost, sources=(0,)))
    problem = Problem(stages, 11_000_000)
    with pytest.raises(ConfigError, match=re.escape(f"planner lagrange: {message}")):
        check_path(problem, path, "lagrange")
    assert check_path(problem, Path((0, np.int64(0)), 1, 1.0), "lagrange") == Path((0, 0), 10_000_000, 4.0)  # type: ignore[arg-type]
