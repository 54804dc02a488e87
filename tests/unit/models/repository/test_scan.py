import errno
import os
from pathlib import Path

import pytest

from sluice.models.errors import ConfigError
from sluice.models.repository.scan import Repository, entry_of_file
from sluice.models.tensors.spec import DataType
from tests.support.located import without_line
from tests.support.models.onnx_models import save_external, save_fixed_batch, save_identity, save_mlp
from tests.unit.models.backends.test_backends import TIMED

PIPELINE = """
stages:
  one: {model: mlp, inputs: {x: request.x}}
outputs:
  y: one.y
"""


def test_models_versions_and_pipelines(tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    save_mlp(tmp_path / "mlp" / "10" / "model.onnx", [4, 3])
    save_fixed_batch(tmp_path / "fixed" / "2" / "model.onnx")
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "1" / "model.timed.json").write_text(TIMED)
    (tmp_path / "a-pipeline").mkdir()
    (tmp_path / "a-pipeline" / "pipeline.yaml").write_text(PIPELINE)

    found = Repository.scan(tmp_path, max_batch_sizes={"mlp": 16})
    assert found.broken == ()
    assert [(key, entry.backend, entry.spec.max_batch_size) for key, entry in found.models.items()] == [
        ("fixed:2", "onnxruntime", 0),
        ("mlp:1", "onnxruntime", 16),
        ("mlp:10", "onnxruntime", 16),
        ("slow:1", "timed", 4),
    ]
    assert found.models["mlp:10"].path == tmp_path / "mlp" / "10" / "model.onnx"
    assert list(found.pipelines) == ["a-pipeline"]
    assert found.pipelines["a-pipeline"].stages[0].model == "mlp:10"


FAMILY = """
variants:
  - {model: mlp, version: 1, accuracy: 0.8}
  - {model: mlp, accuracy: 0.9}
"""


def test_families(tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    save_mlp(tmp_path / "mlp" / "2" / "model.onnx", [4, 8, 3])
    save_mlp(tmp_path / "wide" / "1" / "model.onnx", [5, 3])
    files = {
        "a-pipeline/pipeline.yaml": PIPELINE.replace("model: mlp", "family: any.mlp"),
        "any.mlp/family.yaml": FAMILY,
        "a-broken/family.yaml": FAMILY.replace("0.9", "2"),
        "a-mixed/family.yaml": FAMILY.replace("mlp, version: 1", "wide"),
        "both/family.yaml": FAMILY,
        "both/pipeline.yaml": PIPELINE,
        "mlp-too/family.yaml": FAMILY,
        "mlp-too/1/README.md": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    found = Repository.scan(tmp_path)
    assert list(found.models) == ["mlp:1", "mlp:2", "wide:1"]
    # A family is served by its own name, too.
    assert {name: pipeline.stages[0].variants for name, pipeline in found.pipelines.items()} == {
        "any.mlp": ("mlp:2", "mlp:1"),
        "a-pipeline": ("mlp:2", "mlp:1"),
    }
    expected = {
        "a-broken": "a-broken/family.yaml: variants.1.accuracy: expected a number from 0 to 1, got 2.0",
        "a-mixed": "a-mixed/family.yaml: variants.1.model: 'mlp:2' has inputs x FP32 [4], but 'wide:1' has x FP32 [5]",
        "both": "both/pipeline.yaml: the directory also holds a family.yaml, which would have the same name",
        "mlp-too": "mlp-too/family.yaml: the directory also holds versions of a model, which would have the same name",
    }
    reasons = {broken.name: broken.reason for broken in found.broken}
    assert reasons.keys() == expected.keys()
    for name, start in expected.items():
        assert without_line(reasons[name]).startswith(f"{tmp_path}/{start}")


def test_the_default_maximum_batch_size(tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    assert Repository.scan(tmp_path).models["mlp:1"].spec.max_batch_size == 64
    assert Repository.scan(tmp_path, 8).models["mlp:1"].spec.max_batch_size == 8


def test_what_is_no_version_or_entry_is_ignored(tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    for name in ("01", "0", "-1", "v2", "1.5"):
        (tmp_path / "mlp" / name).mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("models")
    found = Repository.scan(tmp_path)
    assert (list(found.models), found.broken) == (["mlp:1"], ())


def test_what_is_broken_says_why_and_never_stops_the_rest(tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    (tmp_path / "mlp" / "2").mkdir()
    (tmp_path / "mlp" / "3").mkdir()
    (tmp_path / "mlp" / "3" / "model.onnx").write_bytes(b"garbage")
    (tmp_path / "empty").mkdir()
    save_mlp(tmp_path / "configured" / "1" / "model.onnx", [4, 3])
    (tmp_path / "configured" / "config.pbtxt").write_text("sequence_batching { iterative_sequence: true }")
    save_mlp(tmp_path / "sp ace" / "1" / "model.onnx", [4, 3])
    save_mlp(tmp_path / "request" / "1" / "model.onnx", [4, 3])
    for name, text in {"bad-yaml": "stages: [", "bad-model": PIPELINE.replace("mlp", "nothing")}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pipeline.yaml").write_text(text)
    (tmp_path / "not-text").mkdir()
    (tmp_path / "not-text" / "pipeline.yaml").write_bytes(b"\xff\xfe\xff")
    save_mlp(tmp_path / "both" / "1" / "model.onnx", [4, 3])
    (tmp_path / "both" / "pipeline.yaml").write_text(PIPELINE)
    for name, text in {"bad-ensemble": 'platform: "ensemble"', "two": "max_batch_size: 8"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "two" / "pipeline.yaml").write_text(PIPELINE)

    found = Repository.scan(tmp_path)
    assert list(found.models) == ["mlp:1"]
    assert found.pipelines == {}
    reasons = {(broken.name, broken.version): broken.reason for broken in found.broken}
    expected = {
        ("mlp", 2): "mlp/2: expected a file model.onnx or model.timed.json or model.py",
        ("mlp", 3): "mlp/3/model.onnx: not an ONNX model",
        ("empty", None): "empty: expected a version directory such as empty/1, a pipeline.yaml or a family.yaml",
        ("configured", None): "configured/config.pbtxt: sequence_batching.iterative_sequence: not",
        ("sp ace", None): "sp ace: 'sp ace' cannot name a model or a pipeline; expected letters",
        ("request", None): "request: 'request' cannot name a model or a pipeline",
        ("bad-yaml", None): "bad-yaml/pipeline.yaml: not YAML: ",
        ("bad-model", None): "bad-model/pipeline.yaml: stages.one.model: no model 'nothing'; expected mlp",
        ("not-text", None): "not-text/pipeline.yaml: cannot be read: ",
        ("both", None): "both/pipeline.yaml: the directory also holds versions of a model",
        ("two", None): "two/pipeline.yaml: the directory also holds a config.pbtxt; expected one of the two",
        ("bad-ensemble", None): "bad-ensemble/config.pbtxt: ensemble_scheduling: expected at least one step",
    }
    assert reasons.keys() == expected.keys()
    for place, start in expected.items():
        assert without_line(reasons[place]).startswith(f"{tmp_path}/{start}")


def test_a_repository_must_be_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: expected a directory, the model repository"):
        Repository.scan(tmp_path / "none")


def test_a_file_is_served_by_itself(tmp_path: Path) -> None:
    entry = entry_of_file(save_identity(tmp_path / "echo.onnx", DataType.BYTES), 8)
    assert (entry.spec.key, entry.spec.max_batch_size, entry.backend) == ("echo:1", 8, "onnxruntime")
    timed = tmp_path / "slow.timed.json"
    timed.write_text(TIMED)
    assert (entry_of_file(timed).spec.key, entry_of_file(timed).backend) == ("slow:1", "timed")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.pt", r"model\.pt: expected a file ending in \.onnx or \.timed\.json"),
        ("request.onnx", "'request' cannot name a model"),
        ("gone.onnx", "cannot be read: No such file"),
        ("modles", "modles: cannot be read: there is no such file or directory"),
    ],
)
def test_a_file_that_cannot_be_served_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "model.pt").touch()
    with pytest.raises(ConfigError, match=message):
        entry_of_file(tmp_path / name)


def test_what_nobody_meant_as_a_model_is_listed_as_foreign(tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    for name in (b"lost+found", b"@eaDir", b"__pycache__", b"mod\xe8le", b"two\nlines", b"empty"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    (tmp_path / "circle").symlink_to("circle")
    found = Repository.scan(tmp_path)
    assert list(found.models) == ["mlp:1"]
    assert sorted((each.name, each.foreign) for each in found.broken) == [
        ("@eaDir", True),
        ("__pycache__", True),
        ("empty", False),
        ("lost+found", True),
        ("mod\\xe8le", True),
        ("two\\nlines", True),
    ]
    assert all(each.reason.isprintable() for each in found.broken)


def test_an_entry_that_cannot_be_read_does_not_stop_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [4, 3])
    for name, error in {"closed": errno.EACCES, "stale": errno.ESTALE}.items():
        (tmp_path / name).mkdir()
        refuse(monkeypatch, tmp_path / name, error)
    found = Repository.scan(tmp_path)
    assert list(found.models) == ["mlp:1"]
    assert [(each.name, each.foreign) for each in found.broken] == [("closed", True), ("stale", False)]
    assert found.broken[0].reason == f"{tmp_path}/closed/pipeline.yaml: cannot be read: Permission denied"


def refuse(monkeypatch: pytest.MonkeyPatch, directory: Path, error: int) -> None:
    """Let nobody look into a directory, root included."""
    lstat = Path.lstat

    def refusing(path: Path) -> os.stat_result:
        if path.parent == directory:
            raise OSError(error, os.strerror(error), str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refusing)


def test_files_that_are_links_are_read_where_the_links_are(tmp_path: Path) -> None:
    store, entry = tmp_path / "store", tmp_path / "models" / "m"
    save_external(tmp_path / "made" / "model.onnx")
    labels = "cat\r\ndog\r\nfox\r\nowl\r\n"
    for name, data in {
        "1/model.onnx": (tmp_path / "made" / "model.onnx").read_bytes(),
        "1/model.onnx_data": (tmp_path / "made" / "model.onnx_data").read_bytes(),
        "labels.txt": b"\xef\xbb\xbf" + labels.encode(),
        "config.pbtxt": b'\xef\xbb\xbfoutput [{name: "y"\r\n label_filename: "labels.txt"}]\r\n',
    }.items():
        target = store / str(len(data)) / "data"  # each in a directory of its own
        target.parent.mkdir(parents=True)
        target.write_bytes(data)
        (entry / name).parent.mkdir(parents=True, exist_ok=True)
        (entry / name).symlink_to(target)
    found = Repository.scan(tmp_path / "models")
    assert found.broken == ()
    model = found.models["m:1"]
    assert model.path == entry / "1" / "model.onnx"
    assert model.spec.outputs[0].labels == ("cat", "dog", "fox", "owl")


def test_labels_are_found_where_the_link_of_a_configuration_leads(tmp_path: Path) -> None:
    entry, elsewhere = tmp_path / "models" / "m", tmp_path / "elsewhere"
    save_external(entry / "1" / "model.onnx")
    elsewhere.mkdir()
    (elsewhere / "labels.txt").write_text("cat\ndog\nfox\nowl\n")
    (elsewhere / "config.pbtxt").write_text('output [{name: "y" label_filename: "labels.txt"}]')
    (entry / "config.pbtxt").symlink_to(Path("..", "..", "elsewhere", "config.pbtxt"))
    model = Repository.scan(tmp_path / "models").models["m:1"]
    assert model.spec.outputs[0].labels == ("cat", "dog", "fox", "owl")


def test_the_files_in_place_of_a_model_are_named(tmp_path: Path) -> None:
    for name, file in {"a": "net.onnx", "b": "model.pt"}.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / file).touch()
    expected = "expected a file model.onnx or model.timed.json or model.py"
    assert [each.reason for each in Repository.scan(tmp_path).broken] == [
        f"{tmp_path}/a/1: {expected}, got net.onnx; default_model_filename in config.pbtxt names another one",
        f"{tmp_path}/b/1: {expected}, got model.pt",
    ]


def test_a_model_that_is_no_file_is_refused_by_its_kind(tmp_path: Path) -> None:
    for name, kind in {"a": "model.onnx", "b": "model.py", "c": "../config.pbtxt", "d": "../pipeline.yaml"}.items():
        (tmp_path / name / "1").mkdir(parents=True)
        os.mkfifo(tmp_path / name / "1" / kind)
    (tmp_path / "d" / "1").rmdir()
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "1" / "model.onnx").symlink_to("gone")
    reasons = [each.reason.removeprefix(f"{tmp_path}/") for each in Repository.scan(tmp_path).broken]
    assert sorted(reasons) == [
        "a/1/model.onnx: expected a file, got a FIFO",
        "b/1/model.py: expected a file, got a FIFO",
        "c/config.pbtxt: expected a file, got a FIFO",
        "d/pipeline.yaml: expected a file, got a FIFO",
        "e/1/model.onnx: cannot be read: it is a link to gone, which does not exist",
    ]
