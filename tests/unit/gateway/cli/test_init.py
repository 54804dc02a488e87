"""`sluice init` writes repositories that a server takes, or nothing and says why."""

import json
import os
import shlex
from pathlib import Path

import onnx
import pytest

from sluice.gateway.cli.main import main
from sluice.models.repository.scan import Repository
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_identity, save_mlp, save_variable


@pytest.fixture
def models(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "tiny.onnx", [4, 3])
    save_mlp(tmp_path / "big.onnx", [4, 64, 3])
    return tmp_path


def files(directory: Path) -> list[str]:
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file())


def test_two_models_become_a_cascade(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = models / "repo"
    arguments = ["init", repository, models / "tiny.onnx", models / "big.onnx", "--below", "0.8", "--slo-ms", "20ms"]
    assert main(list(map(str, arguments))) == 0
    assert files(repository) == ["big/1/model.onnx", "cascade/pipeline.yaml", "tiny/1/model.onnx"]
    found = Repository.scan(repository)
    assert found.broken == ()
    pipeline = found.pipelines["cascade"]
    assert pipeline.slo_ms == 20
    assert pipeline.stages[1].when is not None
    assert pipeline.stages[1].when.below == 0.8
    out = capsys.readouterr().out
    assert f"  sluice serve {repository}\n" in out
    (line,) = (line for line in out.splitlines() if line.startswith("  curl"))
    command = shlex.split(line)
    assert command[:3] == ["curl", "-s", "localhost:8000/v2/models/cascade/infer"]
    assert json.loads(command[-1])["inputs"][0]["shape"] == [1, 4]


def test_a_small_model_that_is_larger_is_noted(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(models / "repo"), str(models / "big.onnx"), str(models / "tiny.onnx")]) == 0
    assert "big.onnx is larger than" in capsys.readouterr().out


def test_one_model_becomes_a_repository(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(models / "repo"), str(models / "tiny.onnx")]) == 0
    assert files(models / "repo") == ["tiny/1/model.onnx"]
    assert "sluice infer tiny --zeros" in capsys.readouterr().out


def test_a_request_that_is_long_is_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_mlp(tmp_path / "image.onnx", [3000, 2])
    assert main(["init", str(tmp_path / "repo"), str(model)]) == 0
    assert f"-d @{tmp_path / 'repo' / 'request.json'}" in capsys.readouterr().out
    body = json.loads((tmp_path / "repo" / "request.json").read_text())
    assert body["inputs"][0]["data"] == [0] * 3000
    assert Repository.scan(tmp_path / "repo").broken == (), "the file is no entry"


def test_files_of_one_name_get_names_that_differ(models: Path) -> None:
    for folder, sizes in (("v1", [4, 3]), ("v2", [4, 8, 3])):
        save_mlp(models / folder / "net.onnx", sizes)
    assert main(["init", str(models / "a"), str(models / "v1/net.onnx"), str(models / "v2/net.onnx")]) == 0
    assert sorted(each.name for each in (models / "a").iterdir()) == ["cascade", "net-large", "net-small"]


def test_a_model_of_a_repository_keeps_its_name(tmp_path: Path) -> None:
    for name, sizes in (("one", [4, 3]), ("two", [4, 8, 3])):
        save_mlp(tmp_path / "old" / name / "1" / "model.onnx", sizes)
    old = tmp_path / "old"
    assert main(["init", str(tmp_path / "a"), str(old / "one/1/model.onnx"), str(old / "two/1/model.onnx")]) == 0
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == ["cascade", "one", "two"]


def test_weights_outside_of_the_file_come_along(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    model, place = onnx.load(save_mlp(tmp_path / "mlp.onnx", [64, 64])), "weights/ext.data"
    onnx.save(model, str(tmp_path / "ext.onnx"), save_as_external_data=True, location=place, size_threshold=0)
    assert main(["init", str(tmp_path / "repo"), str(tmp_path / "ext.onnx")]) == 0
    assert files(tmp_path / "repo") == ["ext/1/model.onnx", "ext/1/weights/ext.data"]


def test_inputs_of_variable_size_have_a_size_that_both_models_take(tmp_path: Path) -> None:
    small, large = save_variable(tmp_path / "a.onnx"), save_variable(tmp_path / "b.onnx")
    assert main(["init", str(tmp_path / "repo"), str(small), str(large), "--output", "y"]) == 0
    assert (tmp_path / "repo" / "cascade" / "pipeline.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["here", "tiny.onnx"], "here: there is something in it; expected a new or an empty directory"),
        (["new", "lost.onnx"], "lost.onnx: cannot be read: No such file or directory"),
        (["new", "tiny.onnx", "same.onnx"], "same.onnx: input 'x' is INT64 []; expected one that fits an input of"),
        (["new", "tiny.onnx", "big.onnx", "--name", "a/b"], "--name: 'a/b' cannot name a model or a pipeline"),
        (["new", "tiny.onnx", "big.onnx", "--name", "big"], "there is already a model named 'big'"),
        (["new", "tiny.onnx", "big.onnx", "--below", "1.5"], "--below: expected a probability above 0 and at most 1"),
        (["new", "tiny.onnx", "--output", "y"], "--output: expected two model files, of which a cascade is made"),
        (["new", "tiny.onnx", "big.onnx", "--slo-ms", "0"], "--slo-ms: expected milliseconds above 0, got 0"),
        (["new", "text.onnx"], "text.onnx: not an ONNX model"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_written(
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: str,
) -> None:
    (models / "here").mkdir()
    (models / "here" / "file").write_text("")
    (models / "text.onnx").write_text("no model")
    save_identity(models / "same.onnx", DataType.INT64)
    monkeypatch.chdir(models)
    assert main(["init", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert not (models / "new").exists()
    assert os.listdir(models / "here") == ["file"]


def test_logits_are_no_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (save_identity(tmp_path / name, DataType.FP32, [3]) for name in ("one.onnx", "two.onnx"))
    assert main(["init", str(tmp_path / "repo"), str(one), str(two)]) == 2
    assert "one.onnx: no output holds probabilities" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "repo"), str(one), str(two), "--output", "y"]) == 0


def test_a_model_without_numbers_in_json_has_no_curl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_identity(tmp_path / "half.onnx", DataType.FP16, [3])
    assert main(["init", str(tmp_path / "repo"), str(model)]) == 0
    out = capsys.readouterr().out
    assert "sluice infer half --zeros" in out
    assert "curl" not in out
