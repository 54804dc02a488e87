"""Times the way to a first prediction, and to one of a cascade: `python -m scripts.first_prediction [--only NAME]`.

Each server is installed from the package index into a new environment, without pip's cache. Then it serves a model,
and after that a cascade of two, with the files of `programs.py`. The clock of a prediction starts with the process of
the server and ends with the first answer. Servers run one after the other; the ports 3000, 8000 and 8265 must be free.
"""

import argparse
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.support.process_tree import activated, end
from examples.digits.build import build_repository, load_digits
from scripts.first_prediction import programs

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0
STOP_S = 20.0
POLL_S = 0.05
_ELSEWHERE = re.compile(rb"src\s*=\s*[\"'](https?://[^\"']+)|href=[\"'](https?://[^\"']+\.css)")
"""Matches what the HTML of a page loads from other hosts."""


class Task(NamedTuple):
    """A model or a cascade: the files that the user writes, and the command that serves them from their folder."""

    files: dict[str, str]
    command: tuple[str, ...]
    path: str
    body: dict[str, Any]
    layout: tuple[str, ...] = ()
    """Further commands before."""


class Contender(NamedTuple):
    """A server: the packages to install, its port, and the URL of the first page that a person looks at."""

    name: str
    package: str
    packages: tuple[str, ...]
    port: int
    page: str
    model: Task
    cascade: Task


def contenders(image: Any) -> list[Contender]:
    """The servers; `image` is a row of the input as JSON."""
    tensor = {"name": "x", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": image}
    v2, x = {"inputs": [tensor]}, {"x": image}
    return [
        Contender(
            "Sluice",
            "sluice-gateway",
            (f"{ROOT}[cpu]",),
            8000,
            "http://127.0.0.1:8000/",
            Task({}, ("sluice", "serve", "logreg.onnx"), "/v2/models/logreg/infer", v2),
            Task(
                {},
                ("sluice", "serve", "models"),
                "/v2/models/cascade/infer",
                v2,
                ("sluice init models logreg.onnx rf1024.onnx",),
            ),
        ),
        Contender(
            "LitServe",
            "litserve",
            ("litserve", "onnxruntime"),
            8000,
            "http://127.0.0.1:8000/docs",
            Task({"server.py": programs.LITSERVE_MODEL}, ("python", "server.py"), "/predict", x),
            Task({"server.py": programs.LITSERVE_CASCADE}, ("python", "server.py"), "/predict", x),
        ),
        Contender(
            "BentoML",
            "bentoml",
            ("bentoml", "onnxruntime"),
            3000,
            "http://127.0.0.1:3000/",
            Task({"service.py": programs.BENTOML_MODEL}, ("bentoml", "serve"), "/predict", x),
            Task({"service.py": programs.BENTOML_CASCADE}, ("bentoml", "serve", "service:Cascade"), "/predict", x),
        ),
        Contender(
            "Ray Serve",
            "ray",
            ("ray[serve]", "onnxruntime"),
            8000,
            "http://127.0.0.1:8265/",
            Task({"digits.py": programs.RAY_MODEL}, ("serve", "run", "digits:app"), "/", x),
            Task({"digits.py": programs.RAY_CASCADE}, ("serve", "run", "digits:app"), "/", x),
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all servers, or one; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.first_prediction", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one server")
    parser.add_argument("--environments", type=Path, help="keep the environments here, and use those that are there")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="starts of each server (default 3)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which stops the server that runs
    image = (load_digits().test_raw[:1].astype(np.float32) / 16).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build_repository(folder / "digits")
        chosen = [each for each in contenders(image) if options.only in (None, each.name)]
        environments = options.environments or folder / "environments"
        figures = {each.name: install(each, environments / each.package) for each in chosen}
        for number in range(options.rounds):  # interleaved, so that a busy machine is busy for all
            for each in chosen:
                for kind, task in (("model", each.model), ("cascade", each.cascade)):
                    place = folder / each.package / kind / str(number)
                    write_files(task, place, folder / "digits", environments / each.package)
                    page = each.page if kind == "model" else ""
                    answered = serve(each, task, place, environments / each.package, page)
                    merge(figures[each.name][kind], answered)
    for found in figures.values():
        print(json.dumps(found))
    if options.out is not None:
        options.out.write_text(json.dumps(list(figures.values()), indent=1) + "\n")
    return 0


def merge(figures: dict[str, Any], found: dict[str, Any]) -> None:
    """Add a round to the figures of a task: times are lists, with their median."""
    for name, value in found.items():
        if name.endswith("_s") and value is not None:
            every = figures.setdefault(f"every_{name}", [])
            every.append(value)
            figures[name] = statistics.median(every)
        else:
            figures[name] = value


def install(contender: Contender, environment: Path) -> dict[str, Any]:
    """Install a server, unless it is there; the figures that need no run."""
    seconds = None
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        begun = time.monotonic()
        pip = [str(environment / "bin/python"), "-m", "pip", "install", "-qqq", "--no-cache-dir"]
        subprocess.run([*pip, *contender.packages], check=True, env=activated(environment))
        seconds = round(time.monotonic() - begun, 1)
    ask = f"from importlib.metadata import version; print(version('{contender.package}'))"
    version = subprocess.run([environment / "bin/python", "-c", ask], check=True, capture_output=True, text=True).stdout
    size = sum(file.lstat().st_size for file in environment.rglob("*") if not file.is_dir())
    return {
        "name": contender.name,
        "version": version.strip(),
        "install_s": seconds,
        "environment_mb": round(size / 1e6),
        "model": _written(contender.model),
        "cascade": _written(contender.cascade),
    }


def _written(task: Task) -> dict[str, Any]:
    """The files and commands of a task; the commands are those before, and one to serve."""
    lines = sum(bool(line.strip()) for text in task.files.values() for line in text.splitlines())
    return {"files": len(task.files), "lines": lines, "commands": len(task.layout) + 1}


def write_files(task: Task, place: Path, repository: Path, environment: Path) -> None:
    """Do in a new folder what a user does before the server starts; the models are those of the demo."""
    place.mkdir(parents=True)
    for model in ("logreg", "rf1024"):
        shutil.copy(repository / model / "1/model.onnx", place / f"{model}.onnx")
    for command in task.layout:
        subprocess.run(command, shell=True, check=True, cwd=place, env=activated(environment), stdout=subprocess.PIPE)
    for name, text in task.files.items():
        (place / name).write_text(text)


def serve(contender: Contender, task: Task, place: Path, environment: Path, page: str) -> dict[str, Any]:
    """Serve a task until its first answer, and look at the page of the server. Raises TimeoutError."""
    log = place / "server.log"
    command = [str(environment / "bin" / task.command[0]), *task.command[1:]]
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=place, env=activated(environment), stdout=output, stderr=output, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{contender.port}{task.path}"
        request = urllib.request.Request(url, json.dumps(task.body).encode(), {"content-type": "application/json"})
        answer = _first_answer(request, begun + TIMEOUT_S)
        if answer is None or process.poll() is not None:
            raise TimeoutError(f"{contender.name}: no answer:\n{log.read_text(errors='replace')[-3000:]}")
        figures: dict[str, Any] = {"first_answer_s": round(time.monotonic() - begun, 1), "answer": answer.decode()[:80]}
        if page:
            shown = _first_answer(
                urllib.request.Request(page, headers={"accept": "text/html"}), time.monotonic() + STOP_S
            )
            figures["page_s"] = None if shown is None else round(time.monotonic() - begun, 1)
            figures["page_loads_from_elsewhere"] = (
                [] if shown is None else [(each[0] or each[1]).decode() for each in _ELSEWHERE.findall(shown)]
            )
        return figures
    finally:
        end(process, STOP_S)


def _first_answer(request: urllib.request.Request, deadline: float) -> bytes | None:
    """The body of the first answer with status 200; None if there is none in time."""
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read()
            return body
        time.sleep(POLL_S)
    return None


if __name__ == "__main__":
    sys.exit(main())
