"""Mutated configurations are right or refused by a sentence; `python -m scripts.fuzz_configuration` reads many more."""

from scripts.fuzz_configuration import fuzz


def test_no_mutated_configuration_leads_to_a_traceback() -> None:
    failures, refused, _ = fuzz(700, seed=1)
    assert not failures
    assert refused > 500
