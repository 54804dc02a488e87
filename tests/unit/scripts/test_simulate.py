"""`make simulate` tries the given seeds, and says how to repeat and keep those that fail."""

from pathlib import Path

import pytest

from scripts import simulate

TRIED: list[int] = []


def odd_fails(number: int) -> None:
    TRIED.append(number)
    assert number % 2 == 0, "an invariant does not hold"


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    TRIED.clear()
    kept = tmp_path / "kept_seeds.txt"
    kept.write_text("# a machine and a seed\nmachine 8\nother 3\nmachine 6  # what it found\n")
    monkeypatch.setattr(simulate, "MACHINES", {"machine": odd_fails, "other": odd_fails})
    monkeypatch.setattr(simulate, "KEPT_SEEDS", kept)


def test_seeds_follow_the_first_one_and_a_failure_says_how_to_repeat_and_keep_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate.main(["--machine", "machine", "--seed", "6", "--seeds", "3"]) == 1
    assert TRIED == [6, 7, 8]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "machine: seeds from 6"
    assert "AssertionError: an invariant does not hold" in lines
    assert lines[-4:-1] == [
        "machine: seed 7 failed",
        "  to repeat it: make simulate MACHINE=machine SEED=7",
        "  to keep it: add 'machine 7' to kept_seeds.txt",
    ]
    assert lines[-1].startswith("machine: 3 seeds from 6, 1 failed, ")


def test_a_seed_that_is_given_is_the_only_one() -> None:
    assert simulate.main(["--machine", "machine", "--seed", "4"]) == 0
    assert TRIED == [4]


def test_every_machine_tries_the_seeds_that_are_kept_for_it() -> None:
    assert simulate.main(["--kept"]) == 1
    assert TRIED == [8, 6, 3]


def test_the_first_seed_is_drawn_and_one_is_tried_however_short_the_time() -> None:
    simulate.main(["--machine", "machine", "--seconds", "0"])
    simulate.main(["--machine", "machine", "--seconds", "0"])
    first, second = TRIED
    assert first != second
