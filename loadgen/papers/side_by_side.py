"""Plays experiments side by side, a process each."""

import multiprocessing
import signal
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from sluice.loadgen.papers.experiment import Effort, ExperimentReport, PaperExperiment, find_experiments
from sluice.loadgen.papers.experiment_page import PlayedExperiment


def play_experiment(experiment: PaperExperiment, effort: Effort) -> PlayedExperiment:
    """Play one experiment in this process."""
    started_s = time.monotonic()
    report = experiment.run(effort)
    return PlayedExperiment(experiment, report, time.monotonic() - started_s)


def play_side_by_side(
    experiments: Sequence[PaperExperiment], effort: Effort, processes: int
) -> Generator[tuple[int, PlayedExperiment]]:
    """The experiments with their places in `experiments`, as they end; at most `processes` run at a time.

    Those that measure the machine run by themselves, in this process, when the others have ended. An iterator that is
    closed early, as by an interrupt, ends its processes. Raises BrokenProcessPool when one of them is lost.
    """
    beside = [place for place, each in enumerate(experiments) if not each.measures_machine]
    if min(processes, len(beside)) > 1:
        yield from _in_processes(experiments, beside, effort, processes)
    else:
        for place in beside:
            yield place, play_experiment(experiments[place], effort)
    for place, experiment in enumerate(experiments):
        if experiment.measures_machine:
            yield place, play_experiment(experiment, effort)


def _in_processes(
    experiments: Sequence[PaperExperiment], places: Sequence[int], effort: Effort, processes: int
) -> Generator[tuple[int, PlayedExperiment]]:
    others = set(multiprocessing.active_children())
    # Processes start afresh: a fork would have the locks of threads that it lacks.
    pool = ProcessPoolExecutor(
        min(processes, len(places)), mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts
    )
    try:
        playing = {pool.submit(_play_named, experiments[place].name, effort): place for place in places}
        for done in as_completed(playing):
            place = playing[done]
            report, seconds = done.result()
            yield place, PlayedExperiment(experiments[place], report, seconds)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


def _leave_interrupts() -> None:
    """An interrupt at the terminal is for the parent, which ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _play_named(name: str, effort: Effort) -> tuple[ExperimentReport, float]:
    experiment = next(each for each in find_experiments() if each.name == name)
    played = play_experiment(experiment, effort)
    return played.report, played.seconds
