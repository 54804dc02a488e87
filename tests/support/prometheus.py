"""A Prometheus server that scrapes one target, and its answers to queries."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.tools import require_tool

START_S = 60.0
_COMPARISON = re.compile(r"\s(?:==|!=|<=|>=|<|>)\s(?:bool\s)?")
_BETWEEN = re.compile(r"\s(?:==|!=|<=|>=|<|>|and|or|unless)\s(?:on \([a-z, ]*\)\s)?")


class Prometheus(NamedTuple):
    """A running server."""

    url: str

    def query(self, expr: str) -> list[Any]:
        """The series that a query has now. Raises AssertionError for a query that is refused."""
        return list(self._get("query", query=expr)["result"])

    def exemplars(self, expr: str) -> list[Any]:
        """The exemplars of the last minutes, by series."""
        now_s = time.time()
        return list(self._get("query_exemplars", query=expr, start=f"{now_s - 600}", end=f"{now_s + 60}"))

    def label_values(self, name: str, match: str) -> list[str]:
        """The values of a label of a metric."""
        return list(self._get(f"label/{name}/values", **{"match[]": match}))

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their state."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        try:
            url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextmanager
def prometheus(directory: Path, port: int, target: str, rules: Path) -> Iterator[Prometheus]:
    """Scrape `target` every second as the job sluice, and evaluate rules as often."""
    config = directory / "prometheus.json"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [{"job_name": "sluice", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    arguments = [
        require_tool("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            _wait_until_ready(server, process, directory / "prometheus.log")
            yield server
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{server.url}/-/ready", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Prometheus did not start:\n{log.read_text()}") from None
            time.sleep(0.05)


def compared(expr: str) -> list[str]:
    """The parts of a query that it compares or joins, without numbers; the query itself if it does neither."""
    depth, outside = 0, []
    for character in expr:
        depth += character in "({["
        outside.append(character if not depth else "\0")
        depth -= character in ")}]"
    parts, begin = [], 0
    for between in _BETWEEN.finditer("".join(outside)):
        parts.append(expr[begin : between.start()])
        begin = between.end()
    parts.append(expr[begin:])
    if len(parts) == 1 and expr.startswith("(") and _COMPARISON.search(expr):
        return [expr]
    return [part.strip() for part in parts if not re.fullmatch(r"[\d.\s]+", part)]
