"""Models that are loaded in a process of their own."""

import sys
from pathlib import Path

import onnx
import pytest

from sluice.gateway.deployment import load_alone
from sluice.gateway.deployment.load_alone import why_not_loadable
from sluice.models.repository.scan import Repository
from tests.support.models.onnx_models import save_mlp


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m" / "1" / "model.onnx"
    save_mlp(path, (3, 3), seed=1)
    entry = Repository.scan(tmp_path).models["m:1"]
    assert why_not_loadable(entry) == ""
    model = onnx.load(str(path))
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, str(path))
    assert "NoSuchOperator" in why_not_loadable(entry)
    monkeypatch.setattr(load_alone, "LOAD_ALONE_TIMEOUT_S", 0.0)
    assert why_not_loadable(entry) == f"{path}: was not loaded within 0 s"


def test_a_process_that_cannot_be_started_is_a_reason_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m" / "1" / "model.onnx"
    save_mlp(path, (3, 3), seed=1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    found = why_not_loadable(Repository.scan(tmp_path).models["m:1"])
    assert found == f"{path}: the process that loads it cannot be started: No such file or directory"
