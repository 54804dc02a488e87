"""Runs of a comparison: the targets take turns, seed by seed."""

from collections.abc import Callable, Sequence

import msgspec

from sluice.loadgen.comparison.compared_run import ComparedRun, compared_run
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig


def run_interleaved(
    config: RunConfig,
    targets: Sequence[str],
    seeds: int,
    run: Callable[[RunConfig], RunResult],
    report: Callable[[ComparedRun], None],
    *,
    own_service_times: bool,
) -> list[list[ComparedRun]]:
    """Run every target once with each of `seeds` seeds, from the configured one on; returns the runs by target.

    A, B, A, B …: what changes on the machine in the course of time then meets all targets alike. Simulated targets draw
    the same service times in a pair, unless each has `own_service_times`. `report` is called with every run as it ends.
    An interrupt ends the comparison with the last seed that all targets have been run with.
    """
    sides: list[list[ComparedRun]] = [[] for _ in targets]
    for number in range(seeds):
        round_of_runs = []
        for place, target in enumerate(targets):
            # Numbers that no other run of the comparison has.
            service_seed = config.seed + seeds + number * len(targets) + place if own_service_times else None
            changed = msgspec.structs.replace(
                config, target=target, seed=config.seed + number, service_seed=service_seed
            )
            result = run(changed)
            if result.interrupted:
                return sides
            round_of_runs.append(compared_run(result.without_rows()))
            report(round_of_runs[-1])
        for side, each in zip(sides, round_of_runs, strict=True):
            side.append(each)
    return sides
