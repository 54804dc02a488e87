from pathlib import Path

import pytest

from sluice.models.errors import ConfigError
from sluice.models.repository.create import NewModel, create_repository
from tests.support.models.onnx_models import save_mlp


def test_a_repository_has_the_files_of_its_models(tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [2, 2])
    places = create_repository(tmp_path / "new" / "repo", [NewModel("mlp", model, "model.onnx")], {"a/b.yaml": "x"})
    assert places == ["mlp/1/model.onnx", "a/b.yaml"]
    assert (tmp_path / "new/repo/mlp/1/model.onnx").read_bytes() == model.read_bytes()
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["repo"], "nothing else is left"


def test_an_empty_directory_is_filled_and_another_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    create_repository(tmp_path / "repo", [], {"a": "1"})
    with pytest.raises(ConfigError, match="there is something in it; expected a new or an empty directory"):
        create_repository(tmp_path / "repo", [], {"a": "2"})
    assert (tmp_path / "repo" / "a").read_text() == "1"
    with pytest.raises(ConfigError, match="there is a file of that name"):
        create_repository(tmp_path / "repo" / "a", [], {"a": "2"})


def test_a_file_that_cannot_be_copied_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        create_repository(tmp_path / "repo", [NewModel("m", tmp_path / "missing.json", "model.timed.json")], {})
    assert list(tmp_path.iterdir()) == []
