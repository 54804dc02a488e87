"""Configurations that models in Python complete by themselves."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.models.backends.python_models import auto_complete as module
from sluice.models.errors import ConfigError
from sluice.models.repository.scan import Repository

MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {body}
        return config

    def execute(self, requests):
        return []
"""
ADDED = """
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
"""


def scanned(directory: Path, body: str, config: str = "") -> Repository:
    (directory / "m" / "1").mkdir(parents=True)
    (directory / "m" / "1" / "model.py").write_text(MODEL.format(body=body))
    if config:
        (directory / "m" / "config.pbtxt").write_text(config)
    return Repository.scan(directory)


def test_a_model_needs_no_configuration_of_its_own(tmp_path: Path) -> None:
    spec = scanned(tmp_path, ADDED).models["m:1"].spec
    assert (spec.max_batch_size, [tensor.shape for tensor in spec.inputs]) == (4, [(4,)])
    assert spec.inputs[0].optional
    assert [tensor.name for tensor in spec.outputs] == ["y"]
    assert spec.dynamic_batching is not None


def test_a_configuration_is_completed(tmp_path: Path) -> None:
    config = 'backend: "python" max_batch_size: 2 input { name: "z" data_type: TYPE_INT8 dims: 1 }'
    spec = scanned(tmp_path, ADDED, config).models["m:1"].spec
    assert (spec.max_batch_size, [tensor.name for tensor in spec.inputs]) == (4, ["z", "x"])


def test_onnx_runtime_reports_to_nobody_from_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    body = ADDED + "        assert __import__('os').environ['ORT_DISABLE_TELEMETRY'] == '1'"
    assert not scanned(tmp_path, body).broken


@pytest.mark.parametrize(
    ("body", "config", "reason"),
    [
        (ADDED, "max_batch_size: 8", "configuration specified max_batch_size 8, but in auto-complete-config function"),
        (ADDED, 'input { name: "x" dims: 3 }', "tensor 'x': the model expects dims [4] but the model configuration"),
        (ADDED, 'input { name: "x" data_type: TYPE_INT8 }', "configuration expects datatype TYPE_INT8 for input 'x'"),
        ("config.add_input({'dims': [1]})", "", "is missing 'name' property"),
        ("config.add_output({'name': 'y', 'kind': 1})", "", "contains property other than 'name', 'data_type', 'dims'"),
        ("config.set_model_transaction_policy({'many': 1})", "", "contains property other than 'decoupled'"),
        ("return None", "", "expected it to return the configuration, got NoneType"),
        ("1 / 0", "", "ZeroDivisionError: division by zero (model.py:5)"),
        ("raise ValueError('\\ud800')", "", "ValueError: ?"),
        ("__import__('os')._exit(4)", "", "auto_complete_config: its process exited with status 4"),
        ("raise SystemExit(2)", "", "SystemExit: 2"),
        (ADDED + "        config.as_dict()['surprise'] = 1", "", "not a model configuration in JSON"),
    ],
)
def test_a_model_that_completes_it_wrongly_is_broken(tmp_path: Path, body: str, config: str, reason: str) -> None:
    (broken,) = scanned(tmp_path, body, config and f'backend: "python" {config}').broken
    assert str(tmp_path / "m") in broken.reason
    assert reason in broken.reason


def test_a_function_that_does_not_return_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.format(body="__import__('time').sleep(1000)"))
    with pytest.raises(ConfigError, match=r"auto_complete_config: it did not return within 0\.01 s"):
        module.auto_complete(path, '{"name": "m"}', time_limit_s=0.01)


def test_only_models_with_the_function_are_run(tmp_path: Path) -> None:
    assert not module.completes_config(tmp_path / "missing.py")
    (tmp_path / "model.py").write_text("raise SystemExit(1)\n")
    assert not module.completes_config(tmp_path / "model.py")


def test_a_completed_configuration_may_be_large(tmp_path: Path) -> None:
    body = f"""{ADDED}
        for number in range(2000):
            config.add_output({{"name": f"y{{number}}", "data_type": "TYPE_FP32", "dims": [4]}})
"""
    assert len(scanned(tmp_path, body).models["m:1"].spec.outputs) == 2001


def test_the_process_ends_by_itself_when_nothing_waits_for_it_any_more(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(body="while True: pass"))
    command = [sys.executable, "-m", module.__name__, "--path", str(tmp_path / "model.py"), "--result", "1"]
    with subprocess.Popen([*command, "--limit", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.communicate(b'{"name": "m"}', 60)
    assert process.returncode == -signal.SIGALRM
