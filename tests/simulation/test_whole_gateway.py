"""A whole gateway keeps its promises on a simulated machine, whatever fails there.

Each request has one outcome, within a bounded time, and an answer is right; nothing is left when the gateway ends; and
everything is served again once the faults are over. `make simulate MACHINE=gateway SEEDS=1000` tries other seeds.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.simulate import kept_seeds
from sluice.gateway.tensors.request_tensors import StageOutput
from tests.support.gateway.simulation.whole_gateway import Simulated, simulate

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 31)
DIGEST = """
from tests.simulation.test_whole_gateway import digest, simulate
print(digest(simulate({seed})))
"""


def digest(run: Simulated) -> str:
    """Tell apart runs with other decisions or outcomes."""
    return hashlib.sha256(run.journal + repr(run.outcomes).encode()).hexdigest()


@pytest.mark.parametrize("seed", [*SEEDS, *kept_seeds("gateway")])
def test_a_gateway_keeps_its_promises_under_faults(seed: int) -> None:
    run = simulate(seed)
    assert run.problems == (), run.faults


def test_a_seed_leads_to_the_same_decisions_and_outcomes_again() -> None:
    run = simulate(3)
    assert len(run.outcomes) >= 60
    assert run.journal.count(b"\n") > 100
    assert digest(simulate(3)) == digest(run)


def test_a_seed_leads_to_the_same_decisions_and_outcomes_in_a_process_with_other_hashes() -> None:
    hash_seed = "3" if os.environ.get("PYTHONHASHSEED") != "3" else "4"
    other = subprocess.run(
        [sys.executable, "-c", DIGEST.format(seed=3)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == digest(simulate(3))


async def _at_once(*_: object) -> None:
    """Wait for nothing."""


@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("sluice.gateway.tensors.assembly.StageOutput", lambda outputs, _, *rest: StageOutput(outputs, 0, *rest)),
        ("sluice.gateway.tensors.input_slots.InputSlots.free", lambda *_: None),
        ("sluice.gateway.tensors.request_tensors.BatchOutputs.release_reference", lambda *_: None),
        ("sluice.gateway.executors.hang_detector.HangDetector.restart", lambda *_: None),
        ("sluice.gateway.executors.worker.executor.check_answer", lambda *_: None),
        ("sluice.mps.supervisor.supervisor.check_places", lambda *_: None),
        ("sluice.gateway.runtime.driver.Runtime.wait_forgotten", _at_once),
    ],
    ids=[
        "answers have the first rows of their batch",
        "inputs are never freed",
        "outputs are never freed",
        "a hung worker is not found",
        "answers are not checked",
        "places of outputs are not checked",
        "a model is removed while requests wait for it",
    ],
)
def test_a_bug_is_found(place: str, bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, bug)
    assert any(simulate(seed).problems for seed in SEEDS)
