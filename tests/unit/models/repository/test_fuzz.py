"""Mutated model files are right or broken with a reason; `python -m scripts.fuzz_models` reads many more."""

from scripts.fuzz_models import fuzz


def test_no_mutated_model_leads_to_a_traceback() -> None:
    found = fuzz(300, seed=1)
    assert not found.failures
    assert 100 < found.broken < 300
