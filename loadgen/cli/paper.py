"""The commands `loadgen paper list` and `loadgen paper run`: experiments of papers, played again."""

import argparse
import os
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.cli.options import INVALID, MET, MISSED, report_file, write_report
from sluice.loadgen.papers.experiment import Effort, GateVerdict, PaperExperiment, find_experiments
from sluice.loadgen.papers.report.page import (
    PAGE_TITLE,
    PlayedExperiment,
    experiment_text,
    experiments_json,
    experiments_page,
    renewed_page,
)
from sluice.loadgen.papers.report.plot_svg import plot_svg
from sluice.loadgen.papers.side_by_side import play_side_by_side
from sluice.loadgen.results.files import check_parent, write_file
from sluice.loadgen.run.processes import MAX_PROCESSES
from sluice.models.errors import ConfigError
from sluice.models.spelling import did_you_mean
from sluice.models.text_table import table_lines
from sluice.mps.partitions.cpu import available_cores

_ALL = "all"
_EPILOG = "exit codes: 0 all gates met, 1 usage, 2 a gate missed, 4 interrupted"
_ALIASES = ("packing", "mixed-packing", "shares", "nodes")
"""Experiments that were commands of their own; `loadgen paper NAME` runs them for one more release."""


def add_command(commands: Any) -> None:
    """Add the command with its subcommands to the subparsers of `loadgen`."""
    parser = commands.add_parser("paper", help="play experiments of papers again")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = subcommands.add_parser("list", help="list the experiments, with their last verdicts")
    listing.set_defaults(run=_list)
    running = subcommands.add_parser("run", help="run experiments, and judge them by their gates", epilog=_EPILOG)
    running.set_defaults(run=_run)
    running.add_argument("names", nargs="+", metavar="NAME", help=f"an experiment, or {_ALL}")
    _add_options(running)
    for name in _ALIASES:
        alias = subcommands.add_parser(name, help=f"the same as run {name}", epilog=_EPILOG)
        alias.set_defaults(run=_run, names=[name])
        _add_options(alias)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=int, default=10, metavar="N", help="runs where chance has a part (default 10)")
    add("--quick", action="store_true", help="shorter runs: at most 20 s an experiment")
    add(
        "--procs",
        type=int,
        default=min(len(available_cores()), MAX_PROCESSES),
        metavar="N",
        help="processes of the experiments (default: the cores)",
    )
    add("--json", type=report_file, metavar="FILE", help="also write the findings as JSON")
    add("--plot", metavar="DIR", help="also write the plots as SVG files to this folder")
    add(
        "--out",
        type=report_file,
        metavar="FILE",
        help="also write a page in Markdown, with the tables behind the findings; one that is there keeps the "
        "experiments that do not run",
    )


def _list(options: argparse.Namespace) -> int:
    verdicts = _last_verdicts()
    rows = [(each.name, verdicts.get(each.name, "not run"), each.summary, each.source) for each in find_experiments()]
    print("\n".join(table_lines([("name", "last verdict", "it shows", "source"), *rows], left=4)))
    return MET


def _run(options: argparse.Namespace) -> int:
    _check(options)
    effort = Effort(options.seeds, options.quick, options.procs)
    chosen = _chosen(options.names)
    played, interruption = _play(chosen, effort)
    interrupted = bool(interruption)
    if interrupted:
        print(f"{interruption}: {len(played)} of {len(chosen)} experiments have run")
    _keep_verdicts(played, effort)
    write_report(options.json, experiments_json(played, effort, interrupted=interrupted))
    write_report(options.out, _page(options, played, effort, interrupted=interrupted).encode())
    for each in played if options.plot is not None else ():
        for plot in each.report.plots:
            write_file(Path(options.plot, f"{each.experiment.name}-{plot.name}.svg"), plot_svg(plot).encode())
    if interrupted:
        return INVALID
    return MISSED if any(each.report.verdict is GateVerdict.MISSED for each in played) else MET


def _check(options: argparse.Namespace) -> None:
    if options.seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {options.seeds}")
    if not 1 <= options.procs <= MAX_PROCESSES:
        raise ConfigError(f"--procs: expected 1 to {MAX_PROCESSES}, got {options.procs}")
    if (
        options.json is not None
        and options.out is not None
        and Path(options.json).resolve() == Path(options.out).resolve()
    ):
        raise ConfigError(f"--out: expected another file than that of --json, got {options.out}")
    if options.plot is not None:
        if not options.plot or (Path(options.plot).exists() and not Path(options.plot).is_dir()):
            raise ConfigError(f"--plot: expected a folder, got {options.plot or 'nothing'}")
        check_parent(Path(options.plot, "plot.svg"))
        try:
            Path(options.plot).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--plot: {options.plot} cannot be made: {error.strerror}") from error


def _page(options: argparse.Namespace, played: list[PlayedExperiment], effort: Effort, *, interrupted: bool) -> str:
    """The page of `--out`: a run of some experiments, or of as many as ended, leaves the others of it as they are."""
    if options.out is not None and (interrupted or _ALL not in options.names) and Path(options.out).is_file():
        before = Path(options.out).read_text(encoding="utf-8", errors="replace")
        if before.startswith(PAGE_TITLE):
            return renewed_page(before, played, effort, options.names, interrupted=interrupted)
    return experiments_page(played, effort, options.names, interrupted=interrupted)


def _play(chosen: list[PaperExperiment], effort: Effort) -> tuple[list[PlayedExperiment], str]:
    """Play experiments and print them in their order; returns those that ended, and what interrupted the others."""
    ended: dict[int, PlayedExperiment] = {}
    printed = 0
    interruption = ""
    try:
        with closing(play_side_by_side(chosen, effort)) as playing:
            for place, each in playing:
                ended[place] = each
                while printed in ended:
                    print(experiment_text(ended[printed]), flush=True)
                    printed += 1
    except KeyboardInterrupt:
        interruption = "INTERRUPTED"
    except BrokenProcessPool:
        interruption = "INTERRUPTED by the loss of a process, perhaps for want of memory"
    played = [ended[place] for place in sorted(ended)]
    for each in played[printed:]:
        print(experiment_text(each), flush=True)
    return played, interruption


def _chosen(names: list[str]) -> list[PaperExperiment]:
    known = {each.name: each for each in find_experiments()}
    for name in names:
        if name not in (_ALL, *known):
            hint = did_you_mean(name, known)
            raise ConfigError(f"paper run: expected {_ALL} or one of {', '.join(known)}, got '{name}'{hint}")
    return list(known.values()) if _ALL in names else [known[name] for name in dict.fromkeys(names)]


def _verdicts_file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "sluice", "experiments.json")


def _last_verdicts() -> dict[str, str]:
    try:
        return msgspec.json.decode(_verdicts_file().read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):  # none has run yet, or the file is another one's
        return {}


def _keep_verdicts(played: list[PlayedExperiment], effort: Effort) -> None:
    """Keep the verdicts for `list`; a home that cannot be written is no reason to fail."""
    quick = " (quick)" if effort.quick else ""
    verdicts = _last_verdicts() | {each.experiment.name: f"{each.report.verdict}{quick}" for each in played}
    file = _verdicts_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(verdicts))
    except OSError:
        return
