"""Reports of experiments as text, as JSON and as a page of the documentation."""

import re
from collections.abc import Sequence

import msgspec

from sluice.loadgen.papers.experiment import Effort, ExperimentReport, GateVerdict, PaperExperiment
from sluice.models.text_table import table_lines

PAGE_TITLE = "# Experiments of papers, played again\n"
_HEADINGS = ("figure", "published", "ours", "gate", "verdict")


class PlayedExperiment(msgspec.Struct, frozen=True):
    """An experiment with its report, and the time that it took, in seconds."""

    experiment: PaperExperiment
    report: ExperimentReport
    seconds: float


def experiment_text(played: PlayedExperiment) -> str:
    """The findings of an experiment as lines for a terminal."""
    experiment, report = played.experiment, played.report
    lines = [
        f"{experiment.name}: {experiment.summary} ({experiment.source})",
        *(f"  {line}" for line in table_lines([_HEADINGS, *_rows(report)], left=len(_HEADINGS))),
        *(f"  {each.quantity}: {each.why}" for each in report.findings if each.why),
        f"  verdict: {report.verdict} ({played.seconds:.1f} s)",
    ]
    return "\n".join(lines) + "\n"


def experiments_json(played: Sequence[PlayedExperiment], effort: Effort, *, interrupted: bool) -> bytes:
    """All reports as a JSON object; one that is `interrupted` lacks the experiments that were not done."""
    document = {
        "effort": {"seeds": effort.seeds, "quick": effort.quick},
        "interrupted": interrupted,
        "experiments": [
            {
                "name": each.experiment.name,
                "source": each.experiment.source,
                "verdict": each.report.verdict,
                "findings": each.report.findings,
            }
            for each in played
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def experiments_page(
    played: Sequence[PlayedExperiment], effort: Effort, names: Sequence[str], *, interrupted: bool
) -> str:
    """All reports as a Markdown page, which says how it was made: `names` are those that were asked for."""
    parts = [
        PAGE_TITLE,
        f"```sh\n{_command(names, effort)} --out FILE\n```\n",
        "The command wrote this page. Experiments run the product's own scheduler, planners and placement, or its "
        "server.\n",
    ]
    if interrupted:
        parts.append("**The run was interrupted: it has not played all of them.**\n")
    return "\n".join([*parts, *map(_section, played)])


def renewed_page(
    page: str, played: Sequence[PlayedExperiment], effort: Effort, names: Sequence[str], *, interrupted: bool
) -> str:
    """A page of `experiments_page` on which those that were played again say by which command; the others stay."""
    head, *sections = (each.rstrip("\n") + "\n" for each in re.split("(?m)^(?=## )", page))
    by_name = {each.removeprefix("## ").partition(":")[0]: each for each in sections}
    end = ", which was interrupted" if interrupted else ""
    note = f"Played again by `{_command(names, effort)}`{end}.\n"
    by_name |= {each.experiment.name: _section(each, note) for each in played}
    return "\n".join([head, *by_name.values()])


def _command(names: Sequence[str], effort: Effort) -> str:
    return f"loadgen paper run {' '.join(names)} --seeds {effort.seeds}{' --quick' if effort.quick else ''}"


def _section(played: PlayedExperiment, note: str = "") -> str:
    experiment, report = played.experiment, played.report
    return "\n".join(
        [
            f"## {experiment.name}: {experiment.summary}\n",
            f"Source: {experiment.source}. From there: {experiment.given}. Assumed: {experiment.assumed}.\n",
            *([note] if note else ()),
            "\n".join([_markdown(_HEADINGS), "|---" * len(_HEADINGS) + "|", *map(_markdown, _rows(report))]) + "\n",
            *(f"- {finding.quantity}: {finding.why}.\n" for finding in report.findings if finding.why),
            *report.tables,
        ]
    )


def _rows(report: ExperimentReport) -> list[tuple[str, ...]]:
    return [
        (
            each.quantity,
            each.published,
            each.ours,
            each.gate,
            "" if each.verdict is GateVerdict.SHOWN else str(each.verdict),
        )
        for each in report.findings
    ]


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
