"""The demo, and what the README says to do after it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.digits import demo
from examples.digits.build import build_repository
from tests.support.gateway.processes import until

ROOT = Path(demo.__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[demo.Server]:
    directory = tmp_path_factory.mktemp("demo")
    build_repository(directory / "repository", wide=False)
    with demo.serving(directory) as server:
        yield server


def readme_blocks(language: str, server: demo.Server) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block.replace("localhost:8000", f"localhost:{server.http_port}") for block in blocks]


def readme_command(words: str, server: demo.Server) -> str:
    """The one command with these words, as it is typed at a prompt."""
    consoles = "".join(readme_blocks("console", server))
    commands: list[str] = re.findall(r"^\$ ((?:.*\\\n)*.*)$", consoles, re.MULTILINE)
    (command,) = (each for each in commands if words in each)
    return command


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_demo_gets_every_answer_and_the_known_accuracies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(tmp_path) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("digits-")]
    assert [row[:5] for row in rows] == [
        ["digits-cascade", "http", "899", "0.9878", "32.8%"],
        ["digits-cascade", "grpc", "899", "0.9878", "32.8%"],
        ["digits-ensemble", "http", "899", "0.9889", "-"],
        ["digits-ensemble", "grpc", "899", "0.9889", "-"],
    ]


def test_the_readme_s_curl_line_gets_the_zero_recognised(server: demo.Server) -> None:
    (curl,) = (block for block in readme_blocks("sh", server) if block.startswith("curl"))
    answers: list[str] = []

    def is_answered() -> bool:
        """Under load it may be refused: it asks for 20 ms."""
        answers.append(run(["bash", "-c", curl]).stdout)
        return '"shape":[1,10]' in answers[-1]

    until(is_answered)
    data = re.search(r'"data":\[([^\]]*)\]', answers[-1])
    assert data is not None
    probabilities = [float(value) for value in data[1].split(",")]
    assert probabilities.index(max(probabilities)) == 0


def test_the_readme_s_python_client_works(server: demo.Server) -> None:
    (program,) = readme_blocks("python", server)
    answer = run([sys.executable, "-c", program])
    assert answer.returncode == 0, answer.stderr
    assert len(re.findall(r"\d\.\d+", answer.stdout)) == 10


def test_the_readme_s_loadgen_command_runs(server: demo.Server) -> None:
    short = (
        readme_command("loadgen run", server)
        .replace("--duration 10", "--duration 1 --warmup 0")
        .replace(".venv-demo/bin/loadgen", f"{sys.executable} -m sluice.loadgen.cli.main", 1)
    )
    assert "accuracy" in run(["bash", "-c", short]).stdout


def test_the_readme_s_plan_command_runs(server: demo.Server, tmp_path: Path) -> None:
    command = readme_command("sluice plan", server)
    build_repository(tmp_path / "repository", wide=False)
    here = command.replace(".demo/repository", str(tmp_path / "repository"))
    plan = run(["bash", "-c", here.replace(".venv-demo/bin/sluice", f"{sys.executable} -m sluice.gateway.cli.main", 1)])
    heading = re.search(r"^stage +model.*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    printed = [line.split() for line in plan.stdout.splitlines()]
    assert heading[0].split() in printed, plan.stderr
