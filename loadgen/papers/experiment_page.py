"""Reports of experiments as text, as JSON and as a page of the documentation."""

from collections.abc import Sequence

import msgspec

from sluice.loadgen.papers.experiment import Effort, ExperimentReport, GateVerdict, PaperExperiment
from sluice.models.text_table import table_lines

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
    quick = " --quick" if effort.quick else ""
    parts = [
        "# Experiments of papers, played again\n",
        f"```sh\nloadgen paper run {' '.join(names)} --seeds {effort.seeds}{quick} --out FILE\n```\n",
        "The command wrote this page. Experiments run the product's own scheduler, planners and placement, or its "
        "server.\n",
    ]
    if interrupted:
        parts.append("**The run was interrupted: experiments are missing.**\n")
    for each in played:
        experiment, report = each.experiment, each.report
        parts += [
            f"## {experiment.name}: {experiment.summary}\n",
            f"Source: {experiment.source}. From there: {experiment.given}. Assumed: {experiment.assumed}.\n",
            "\n".join([_markdown(_HEADINGS), "|---" * len(_HEADINGS) + "|", *map(_markdown, _rows(report))]) + "\n",
            *(f"- {finding.quantity}: {finding.why}.\n" for finding in report.findings if finding.why),
            *report.tables,
        ]
    return "\n".join(parts)


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
