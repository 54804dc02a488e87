"""The scripts of `sluice completion` in the real shells, by pressing the Tab key."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.terminal import Terminal, on_terminal, sluice_command
from tests.support.tools import require_tool

_TABS = "\t\t"
_PROMPT = "ready>"
_COMMANDS: dict[str, list[str]] = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
_BEGIN = {
    "bash": "bind 'set enable-bracketed-paste off'; PS1='{prompt} '; source {script}; cd {folder}",
    "zsh": "autoload -Uz compinit && compinit -u -D; PROMPT='{prompt} '; source {script}; cd {folder}",
    "fish": "function fish_prompt; echo -n '{prompt} '; end; function fish_greeting; end; source {script}; cd {folder}",
}

Complete = Callable[[str, str], None]
"""Types the beginning of a command, presses Tab, and waits until the shell shows a text."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in _COMMANDS:
        done = subprocess.run(sluice_command("completion", shell), capture_output=True, text=True, check=True)
        (folder / shell).write_text(done.stdout)
    (folder / "files").mkdir()
    (folder / "files" / "resnet50.onnx").touch()
    return folder


@pytest.fixture(params=list(_COMMANDS))
def complete(request: pytest.FixtureRequest, scripts: Path) -> Iterator[Complete]:
    shell = request.param
    path = require_tool(shell)
    begin = _BEGIN[shell].format(prompt=_PROMPT, script=scripts / shell, folder=scripts / "files")
    environment = {"TERM": "dumb", "HOME": str(scripts), "HISTFILE": ""}
    with on_terminal([path, *_COMMANDS[shell]], 200, 50, environment) as terminal:
        terminal.press(f"{begin}\r")
        terminal.read_until(lambda text: text.count(_PROMPT) >= 2)
        yield lambda typed, shown: _tab(terminal, typed, shown)


def _tab(terminal: Terminal, typed: str, shown: str) -> None:
    at = len(terminal.text)
    terminal.press(typed + _TABS)
    terminal.read_until(lambda text: shown in text[at:])
    terminal.press("\x15")  # drops the line


def test_commands_options_and_their_values_are_completed(complete: Complete) -> None:
    complete("sluice doc", "sluice doctor")
    complete("sluice model re", "sluice model register")
    complete("sluice serve --http-", "sluice serve --http-port")
    complete("sluice serve --policy ti", "sluice serve --policy timeout")
    complete("sluice partitions apply --al", "sluice partitions apply --allow-mig")
    complete("sluice profile --repo", "sluice profile --repository")
    complete("sluice completion fi", "sluice completion fish")


def test_files_are_completed_where_files_are_expected(complete: Complete) -> None:
    complete("sluice serve resn", "sluice serve resnet50.onnx")
    complete("sluice plan --config resn", "resnet50.onnx")
