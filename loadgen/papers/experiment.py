"""The experiments of papers: a module of this folder registers one as its `EXPERIMENT`."""

import pkgutil
from collections.abc import Callable
from importlib import import_module

import msgspec

from sluice.loadgen import papers


class PaperExperiment(msgspec.Struct, frozen=True):
    """An experiment of a paper as a subcommand: `table` replays it and returns a Markdown table."""

    name: str
    summary: str
    table: Callable[[], str]


def find_experiments() -> list[PaperExperiment]:
    """All registered experiments, by the names of their modules."""
    modules = (import_module(f"{papers.__name__}.{module.name}") for module in pkgutil.iter_modules(papers.__path__))
    experiments = (getattr(module, "EXPERIMENT", None) for module in modules)
    return [experiment for experiment in experiments if isinstance(experiment, PaperExperiment)]
