"""The command `loadgen report`: results that were written before, as text, Markdown, JSON or a page of HTML."""

import argparse
from pathlib import Path
from typing import Any

from sluice.loadgen.cli.options import MET
from sluice.loadgen.reports.document import runs_json
from sluice.loadgen.reports.html import run_page
from sluice.loadgen.reports.markdown import runs_markdown
from sluice.loadgen.reports.text import run_text
from sluice.loadgen.results.read import read_results


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `loadgen`."""
    parser = commands.add_parser("report", help="report on results: text, or Markdown, JSON and HTML in files")
    parser.set_defaults(run=_run)
    source = "folder of a result (--out), or JSON of runs (--json of run, find-max or sweep)"
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help=source)
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the report as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page of HTML")


def _run(options: argparse.Namespace) -> int:
    results = [result for path in options.results for result in read_results(path)]
    if options.md is not None:
        options.md.write_text(runs_markdown(results))
    if options.json is not None:
        options.json.write_bytes(runs_json(results))
    if options.html is not None:
        options.html.write_text(run_page(results))
    if options.md is options.json is options.html is None:
        print("\n".join(run_text(result) for result in results), end="")
    return MET
