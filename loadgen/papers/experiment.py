"""The experiments of papers: a module of this folder registers one as its `EXPERIMENT`."""

import enum
import pkgutil
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from typing import TypeVar

import msgspec

from sluice.loadgen import papers
from sluice.loadgen.papers.engines.processes import as_they_end

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


class GateVerdict(enum.StrEnum):
    """The verdict on a figure of ours beside the published one."""

    SHOWN = "shown"
    """No gate is set: the figure is there to be compared."""
    MET = "met"
    MISSED = "missed"
    DIFFERS = "does not reproduce"
    """The published figure cannot come out, for the reason that the finding gives."""


class ExperimentFinding(msgspec.Struct, frozen=True):
    """One figure: ours beside the published one, the gate that it has to pass, and the reason of a verdict."""

    quantity: str
    ours: str
    published: str = ""
    gate: str = ""
    verdict: GateVerdict = GateVerdict.SHOWN
    why: str = ""


class Plot(msgspec.Struct, frozen=True):
    """A figure: lines of points (x, y), each with its label, or bars in groups.

    With `groups` there are bars: x of a point is the index of its group. `name` names the file. At most eight lines.
    `beside` is the paper's own figure of the same.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    log_x: bool = False
    log_y: bool = False
    groups: tuple[str, ...] = ()
    beside: str = ""


class ExperimentReport(msgspec.Struct, frozen=True):
    """The findings of one run of an experiment, and what lies behind them: Markdown tables, and plots."""

    findings: tuple[ExperimentFinding, ...]
    tables: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()

    @property
    def verdict(self) -> GateVerdict:
        """`MISSED` if one gate was missed, `MET` if all were met, and `SHOWN` without any."""
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in (GateVerdict.MISSED, GateVerdict.MET):
            if verdict in verdicts:
                return verdict
        return GateVerdict.SHOWN


class Effort(msgspec.Struct, frozen=True):
    """The size of a run: where chance has a part, there are runs with `seeds` seeds; `quick` ones are shorter.

    An experiment may have `processes`, which change no report.
    """

    seeds: int = 10
    quick: bool = False
    processes: int = 1

    def each(self, function: Callable[[_Argument], _Result], arguments: Sequence[_Argument]) -> list[_Result]:
        """The results of a function of a module for each argument, from as many processes as there are."""
        with closing(as_they_end(function, arguments, self.processes)) as ended:
            results = dict(ended)
        return [results[place] for place in range(len(arguments))]


class PaperExperiment(msgspec.Struct, frozen=True):
    """An experiment of a paper: `given` is what is the paper's, and `assumed` what had to be added.

    The same effort gives the same report, unless it `measures_machine`: then it times this machine, and no other
    experiment runs beside it.
    """

    name: str
    summary: str
    source: str
    given: str
    assumed: str
    run: Callable[[Effort], ExperimentReport]
    measures_machine: bool = False


def gated(
    quantity: str, ours: str, *, published: str = "", gate: str, is_met: bool, why: str = ""
) -> ExperimentFinding:
    """A finding with a gate; `why` says what the cause is where it is missed."""
    verdict = GateVerdict.MET if is_met else GateVerdict.MISSED
    return ExperimentFinding(quantity, ours, published, gate, verdict, "" if is_met else why)


def timed(
    effort: Effort, quantity: str, ours: str, *, published: str = "", gate: str, is_met: bool, why: str = ""
) -> ExperimentFinding:
    """A finding on processor time, which quick runs do not judge: a busy machine says nothing about the program."""
    if effort.quick:
        return ExperimentFinding(quantity, "not judged in a quick run", published)
    return gated(quantity, ours, published=published, gate=gate, is_met=is_met, why=why)


def find_experiments() -> list[PaperExperiment]:
    """All registered experiments, by the names of their modules."""
    modules = (import_module(f"{papers.__name__}.{module.name}") for module in pkgutil.iter_modules(papers.__path__))
    experiments = (getattr(module, "EXPERIMENT", None) for module in modules)
    return [experiment for experiment in experiments if isinstance(experiment, PaperExperiment)]
