"""The README is short and starts with the two commands."""

from tests.support.documents import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_starts_with_the_two_commands() -> None:
    assert README.startswith("# Sluice\n\n```sh\nmake demo\nmake test\n```\n")


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150
