"""The load generator against a gateway in its own process: scheduler, data plane and workers without sockets."""

from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.support.models.onnx_models import save_mlp

TARGET = "inproc:sluice.gateway.server.in_process:configured"


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_mlp(tmp_path / "repository" / "m" / "1" / "model.onnx", [2, 8, 2])
    file = tmp_path / "sluice.yaml"
    file.write_text(f"repository: {tmp_path / 'repository'}\npartitions: 1\n")
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    return tmp_path


def test_every_query_is_answered_and_some_say_where_their_time_went(configured: Path) -> None:
    rng = np.random.default_rng(1)
    np.savez(configured / "s.npz", x=rng.random((50, 2), np.float32), y=np.zeros(50, np.int64))
    samples = SampleSource(str(configured / "s.npz"), labels="y")
    config = RunConfig(target=TARGET, model="m", rate=500, queries=300, warmup_s=0, slo_ms=10_000, samples=samples)
    result = run(config)
    assert result.metrics.ok == 300
    assert result.answered_rows == 300
    assert sorted(result.record.stages) == [0, 100, 200]
    assert all(stages.startswith("m;batch=") for stages in result.record.stages.values())


def test_what_is_out_of_time_is_shed_and_an_unknown_model_named(configured: Path) -> None:
    config = RunConfig(target=TARGET, model="m", rate=500, queries=20, warmup_s=0, slo_ms=0.000001)
    result = run(config)
    assert result.metrics.ok + result.metrics.shed == 20
    assert result.metrics.shed > 0
    with pytest.raises(ConfigError, match=r"--model absent: .*absent.* is not found"):
        run(RunConfig(target=TARGET, model="absent", rate=500, queries=20))
