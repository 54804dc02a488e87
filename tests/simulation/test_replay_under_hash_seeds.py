"""A journal with kills replays to the same decisions in processes whose strings have other hashes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.batcher.drivers.journal import decode_step
from sluice.batcher.interface.decisions import FailRequest
from sluice.batcher.interface.events import PartitionLost
from tests.support.scheduling.recorded_machine import recorded

HASH_SEEDS = ("0", "1", "2", "3", "4")
REPLAY = """
import sys
from sluice.batcher.drivers.journal import replay
from sluice.batcher.planner.live import LivePlanner
with open(sys.argv[1], "rb") as lines:
    print(replay(lines, LivePlanner()))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_journal_with_kills_replays_under_any_hash_seed(seed: int, tmp_path: Path) -> None:
    journal = recorded(seed)
    steps = [decode_step(line) for line in journal[1:]]
    assert sum(isinstance(step.event, PartitionLost) for step in steps) >= 13
    assert max(sum(isinstance(each, FailRequest) for each in step.decisions) for step in steps) > 1
    path = tmp_path / "journal"
    path.write_bytes(b"".join(journal))
    replays = {
        hash_seed: subprocess.Popen(
            [sys.executable, "-c", REPLAY, str(path)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for hash_seed in HASH_SEEDS
    }
    found = {hash_seed: process.communicate()[0].strip() for hash_seed, process in replays.items()}
    assert found == dict.fromkeys(HASH_SEEDS, "None")
