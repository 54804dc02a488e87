"""The files that the users of each server write, and how times of several rounds are summed up."""

import ast

import pytest

from scripts.first_prediction import programs
from scripts.first_prediction.__main__ import contenders, merge

PROGRAMS = [name for name in vars(programs) if name.endswith(("_MODEL", "_CASCADE"))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_python(name: str) -> None:
    ast.parse(getattr(programs, name))


def test_every_server_serves_a_model_and_a_cascade() -> None:
    every = contenders([[0.0]])
    assert [each.name for each in every] == ["Sluice", "LitServe", "BentoML", "Ray Serve"]
    assert all(each.model.command and each.cascade.command for each in every)


def test_times_of_rounds_are_medians() -> None:
    figures: dict[str, object] = {}
    for seconds in (3.0, 1.0, 2.0):
        merge(figures, {"first_answer_s": seconds, "page_s": None, "answer": "x"})
    assert figures == {"every_first_answer_s": [3.0, 1.0, 2.0], "first_answer_s": 2.0, "page_s": None, "answer": "x"}
