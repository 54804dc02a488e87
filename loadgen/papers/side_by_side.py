"""Plays experiments side by side, a process each."""

import time
from collections.abc import Generator, Sequence

import msgspec

from sluice.loadgen.papers.engines.processes import as_they_end
from sluice.loadgen.papers.experiment import Effort, ExperimentReport, PaperExperiment, find_experiments
from sluice.loadgen.papers.report.page import PlayedExperiment


def play_experiment(experiment: PaperExperiment, effort: Effort) -> PlayedExperiment:
    """Play one experiment in this process."""
    started_s = time.monotonic()
    report = experiment.run(effort)
    return PlayedExperiment(experiment, report, time.monotonic() - started_s)


def play_side_by_side(
    experiments: Sequence[PaperExperiment], effort: Effort
) -> Generator[tuple[int, PlayedExperiment]]:
    """The experiments with their places in `experiments`, as they end, as many at a time as the effort has processes.

    One by itself has all of the processes. Those that measure the machine run by themselves, when the others have
    ended. An interrupt and the loss of a process end all of them, as in `as_they_end`.
    """
    beside = [place for place, each in enumerate(experiments) if not each.measures_machine]
    if min(effort.processes, len(beside)) > 1:
        alone = msgspec.structs.replace(effort, processes=1)
        arguments = [(experiments[place].name, alone) for place in beside]
        for index, (report, seconds) in as_they_end(_play_named, arguments, effort.processes):
            place = beside[index]
            yield place, PlayedExperiment(experiments[place], report, seconds)
    else:
        for place in beside:
            yield place, play_experiment(experiments[place], effort)
    for place, experiment in enumerate(experiments):
        if experiment.measures_machine:
            yield place, play_experiment(experiment, effort)


def _play_named(named: tuple[str, Effort]) -> tuple[ExperimentReport, float]:
    name, effort = named
    experiment = next(each for each in find_experiments() if each.name == name)
    played = play_experiment(experiment, effort)
    return played.report, played.seconds
