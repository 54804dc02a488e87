"""`sluice doctor`: what a server would find on this machine, and what is wrong with it."""

import argparse
from pathlib import Path

import msgspec

WRONG = 1
"""Exit status when something is wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_doctor)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the server's settings, for its partitions")
    parser.add_argument("--url", help="of a running server, to ask for its partitions instead of trying some out")
    parser.add_argument("--json", action="store_true", help="all findings, for programs")


def _doctor(options: argparse.Namespace) -> int:
    from sluice.gateway.cli.checks import Severity, run_checks
    from sluice.gateway.cli.running_server import partition_findings
    from sluice.gateway.cli.text.text_table import aligned
    from sluice.gateway.config.server_config import ServerConfig, read_config

    config = ServerConfig() if options.config is None else read_config(options.config)
    findings = list(run_checks(config, with_layout=options.url is None))
    if options.url is not None:
        findings += partition_findings(options.url)
    wrong = any(each.verdict is Severity.WRONG for each in findings)
    if options.json:
        print(msgspec.json.encode({"ok": not wrong, "findings": findings}).decode())
    else:
        for line in aligned([(each.verdict.value, each.part, each.text) for each in findings], left=3):
            print(line)
    return WRONG if wrong else 0
