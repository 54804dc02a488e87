"""The pure and the compiled build decide the same, so that a journal of one replays on the other."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.packaging import ROOT

BUILDS = ("pure", "compiled")
SEEDS = range(101, 113)
WHICH = "from sluice.gateway.version import is_compiled; print(is_compiled())"
RECORD = """
from sys import argv
from pathlib import Path
from tests.support.scheduling.recorded_machine import recorded
Path(argv[1]).write_bytes(b"".join(recorded(int(argv[2]))))
"""
REPLAY = """
from sys import argv
from sluice.batcher.drivers.journal import replay
from sluice.batcher.planner.live import LivePlanner
with open(argv[1], "rb") as lines:
    print(replay(lines, LivePlanner()))
"""
SIMULATE = """
from sys import argv
from hashlib import sha256
from tests.support.gateway.simulation.whole_gateway import simulate
for seed in map(int, argv[1:]):
    run = simulate(seed)
    print(seed, run.journal.count(b"\\n"), sha256(run.journal).hexdigest(), run.outcomes, run.problems)
"""


class Process:
    """A Python process in which one of the builds is imported."""

    def __init__(self, tree: Path, code: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def output(self) -> str:
        """Its output, once it has ended without an error."""
        printed, _ = self._process.communicate()
        assert self._process.returncode == 0
        return printed.strip()


def test_each_process_has_the_build_that_it_is_to_have(trees: Mapping[str, Path]) -> None:
    assert [Process(trees[build], WHICH).output() for build in BUILDS] == ["False", "True"]


@pytest.mark.parametrize("seed", [1, 2])
def test_both_builds_record_the_same_journal_and_each_replays_that_of_the_other(
    seed: int, trees: Mapping[str, Path], tmp_path: Path
) -> None:
    """While partitions are lost again and again, requests of all pipelines come, fail, and time out."""
    journals = {build: tmp_path / build for build in BUILDS}
    for recording in [Process(trees[build], RECORD, journals[build], seed) for build in BUILDS]:
        assert recording.output() == ""
    replays = [Process(trees[build], REPLAY, journals[other]) for build, other in (BUILDS, BUILDS[::-1])]
    assert [replay.output() for replay in replays] == ["None", "None"]
    assert journals["pure"].read_bytes() == journals["compiled"].read_bytes()
    assert journals["pure"].read_bytes().count(b"\n") > 1000


def test_both_builds_decide_the_same_in_random_simulations_of_the_whole_gateway(trees: Mapping[str, Path]) -> None:
    pure, compiled = (Process(trees[build], SIMULATE, *SEEDS) for build in BUILDS)
    expected = pure.output().splitlines()
    assert compiled.output().splitlines() == expected
    assert len(expected) == len(SEEDS)
    assert sum(int(line.split()[1]) for line in expected) > 5_000
