"""The parts of the life cycle: what clients may give, what is read again, who is waited for, who goes with whom."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.override import Override, read_override
from sluice.gateway.deployment.revision import Deployed, RevisionSource, read_revision
from sluice.models.errors import ForbiddenRequest, RequestError

PIPELINE = "stages: {only: {model: m, inputs: {x: request.x}}}\noutputs: {y: only.y}\n"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def save(
    repository: Path, name: str, version: int = 1, latency_ms: float = 1, output: str = "y", size: int = 0
) -> Path:
    """A model whose file has at least `size` bytes."""
    path = repository / name / str(version) / "model.timed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"inputs": [tensor("x")], "outputs": [tensor(output)]}
    path.write_text(json.dumps({**tensors, "max_batch_size": 4, "latency_ms": {"1": latency_ms}}).ljust(size))
    return path


def tensor(name: str) -> dict[str, object]:
    return {"name": name, "datatype": "FP32", "shape": [3]}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    save(tmp_path, "m")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def source(repository: Path) -> RevisionSource:
    return RevisionSource((repository,), 8, {}, {})


def read(
    repository: Path, *names: str, number: int = 1, served: dict[str, Deployed] | None = None
) -> dict[str, Deployed]:
    revision = read_revision(source(repository), names, number, served or {}, {})
    assert revision.broken == {}
    return revision.deployed


def keys(deployed: dict[str, Deployed]) -> dict[str, list[str]]:
    return {name: [pipeline.key for pipeline in each.pipelines] for name, each in sorted(deployed.items())}


def test_what_a_pipeline_needs_is_read_with_it_unless_it_is_served(repository: Path) -> None:
    assert source(repository).needed({"p"}, {}, {}) == {"p", "m"}
    served = read(repository, "p", "m")
    assert keys(served) == {"m": ["m:1@1"], "p": ["p:1@1"]}
    assert served["p"].pipelines[0].stages[0].model == "m:1@1"
    assert served["p"].needs == {"m"}
    assert source(repository).needed({"p"}, served, {}) == {"p"}
    again = read(repository, "p", number=2, served=served)
    assert keys(again) == {"p": ["p:1@2"]}
    assert again["p"].pipelines[0].stages[0].model == "m:1@1"


def test_versions_that_have_not_changed_stay_as_they_are(repository: Path) -> None:
    save(repository, "m", version=2)
    served = read(repository, "m")
    save(repository, "m", version=2, latency_ms=2.5)
    save(repository, "m", version=3)
    again = read(repository, "m", number=2, served=served)
    assert keys(again) == {"m": ["m:1@1", "m:2@2", "m:3@2"]}
    (repository / "m" / "config.pbtxt").write_text("max_batch_size: 2")
    assert keys(read(repository, "m", number=3, served=again)) == {"m": ["m:3@3"]}


def test_a_pipeline_that_a_new_model_does_not_fit_is_reported(repository: Path) -> None:
    save(repository, "m", output="z")
    revision = read_revision(source(repository), ["p", "m"], 2, {}, {})
    assert keys(revision.deployed) == {"m": ["m:1@2"]}
    assert "outputs.y" in revision.broken["p"]


def test_an_override_stands_for_the_configuration_and_the_files(repository: Path, tmp_path: Path) -> None:
    content = save(tmp_path / "elsewhere", "other").read_bytes()
    override = read_override({"config": '{"max_batch_size": 2}', "file:7/model.timed.json": content})
    assert override is not None
    override.write("other")
    revision = read_revision(source(repository), ["other"], 1, {}, {"other": override})
    (pipeline,) = revision.deployed["other"].pipelines
    assert (pipeline.key, pipeline.max_batch_size) == ("other:7@1", 2)
    assert revision.deployed["other"].files is None
    override.discard()
    assert override.entry is not None
    assert not override.entry.exists()


def test_what_needs_a_name_with_an_override_is_read_beside_it(repository: Path) -> None:
    content = (repository / "m" / "1" / "model.timed.json").read_bytes()
    override = read_override({"config": "{}", "file:1/model.timed.json": content})
    assert override is not None
    override.write("m")
    served = read_revision(source(repository), ["m"], 1, {}, {"m": override}).deployed
    revision = read_revision(source(repository), ["p"], 2, served, {"m": override})
    assert keys(revision.deployed) == {"p": ["p:1@2"]}
    assert revision.deployed["p"].pipelines[0].stages[0].model == "m:1@1"
    override.discard()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("1/model.py", b""),
        ("1/Model.PY", b""),
        ("1/model.py/", b""),
        ("lib/helper.so", b""),
        ("1/__pycache__/a.pyc", b""),
        ("1/weights", b"\x7fELF\2\1\1"),
        ("start", b"#!/bin/sh\n"),
    ],
)
def test_a_file_that_is_code_by_its_name_or_its_beginning_is_refused(path: str, content: bytes) -> None:
    parameters: dict[str, object] = {"config": "{}", f"file:{path}": content}
    with pytest.raises(ForbiddenRequest, match=r"is code, which this server does not take.*--allow-upload"):
        read_override(parameters)
    assert read_override(parameters, allows_code=True) is not None


def test_a_file_that_a_model_would_run_is_refused_under_any_name(repository: Path) -> None:
    config: dict[str, object] = {"backend": "python", "default_model_filename": "weights.bin"}
    config |= {put: [{"name": put, "data_type": "TYPE_FP32", "dims": [1]}] for put in ("input", "output")}
    for allows_code in (False, True):
        override = read_override({"config": json.dumps(config), "file:1/weights.bin": b""}, allows_code=allows_code)
        assert override is not None
        override.write("given")
        (model,) = read_revision(source(repository), ["given"], 1, {}, {"given": override}).deployed["given"].models
        if allows_code:
            override.check([model])
        else:
            with pytest.raises(ForbiddenRequest, match=r"'file:1/weights\.bin' is code"):
                override.check([model])
        override.discard()


def test_files_come_as_bytes_or_in_base64() -> None:
    override = read_override({"config": "{}", "file:1/model.onnx": base64.b64encode(b"content").decode()})
    assert override is not None
    override.write("m")
    assert override.entry is not None
    assert (override.entry / "1" / "model.onnx").read_bytes() == b"content"
    override.discard()
    assert read_override({}) is None


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"file:1/model.onnx": b""}, "must have the parameter 'config'"),
        ({"config": 3}, "must be a configuration in JSON, got int"),
        ({"config": "{}", "colour": "red"}, "parameter 'colour' is unknown"),
        ({"config": "{}", "file:../../evil": b""}, "inside of the directory of the model"),
        ({"config": "{}", "file:/etc/passwd": b""}, "inside of the directory of the model"),
        ({"config": "{}", "file:": b""}, "inside of the directory of the model"),
        ({"config": "{}", "file:1/model.onnx": "%%%"}, "must be in base64"),
        ({"config": "{}", "file:1/model.onnx": True}, "must be the contents of a file, got bool"),
    ],
)
def test_what_a_client_may_not_give_is_refused(parameters: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read_override(parameters)


def deployed(*needs: str, override: Override | None = None) -> Deployed:
    return Deployed((), (), frozenset(needs), None, override)


def test_what_needs_a_name_goes_with_it_and_returns_with_it() -> None:
    names = DependencyGraph({"m": deployed(), "n": deployed(), "family": deployed("m"), "p": deployed("family", "n")})
    assert names.dependents({"m"}) == {"family", "p"}
    taken, stranded = names.remove("m", with_dependencies=False)
    assert (set(taken), stranded) == ({"m", "family", "p"}, {"family", "p"})
    assert set(names.served) == {"n"}
    assert names.returning({"n"}) == set()
    assert names.returning({"m"}) == {"family", "p"}


def test_what_only_a_name_needs_goes_with_it_when_that_is_asked_for() -> None:
    served = {"m": deployed(), "n": deployed(), "k": deployed(), "p": deployed("m", "n"), "q": deployed("n")}
    taken, stranded = DependencyGraph(served).remove("p", with_dependencies=True)
    assert (set(taken), stranded) == ({"p", "m"}, set())
    taken, stranded = DependencyGraph(served).remove("unknown", with_dependencies=True)
    assert (taken, stranded) == ({}, set())
