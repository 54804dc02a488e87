"""The demo's models have the accuracies that the demo promises, whatever the machine's linear algebra library."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from examples.digits.build import build_repository, load_digits, model_path

Probabilities = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def probabilities(tmp_path_factory: pytest.TempPathFactory) -> Probabilities:
    repository: Path = tmp_path_factory.mktemp("repository")
    build_repository(repository, wide=False)

    def run(name: str, inputs: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        session = onnxruntime.InferenceSession(model_path(repository, name), providers=["CPUExecutionProvider"])
        output: NDArray[np.float32] = session.run(None, inputs)[0]
        return output

    x = run("prep", {"raw": load_digits().test_raw})
    return {name: run(name, {"x": x}) for name in ("logreg", "rf256", "rf1024", "rbf")}


def correct(probs: NDArray[np.floating]) -> int:
    return int((probs.argmax(axis=1) == load_digits().test_labels).sum())


def test_the_data_set_is_split_into_disjoint_rows_to_train_on_and_to_test_with() -> None:
    digits = load_digits()
    assert digits.train_raw.shape == (898, 1, 8, 8)
    assert digits.test_raw.shape == (899, 1, 8, 8)
    assert digits.test_raw.max() == 16
    assert np.bincount(np.concatenate([digits.train_labels, digits.test_labels])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180
    ]  # fmt: skip


@pytest.mark.parametrize(("model", "right"), [("logreg", 868), ("rf256", 885), ("rf1024", 888), ("rbf", 892)])
def test_each_model_gets_its_known_number_of_the_899_test_rows_right(
    probabilities: Probabilities, model: str, right: int
) -> None:
    assert correct(probabilities[model]) == right


@pytest.mark.parametrize(("below", "right", "escalated"), [(0.5, 878, 36), (0.8, 888, 183), (0.9, 888, 295)])
def test_the_cascade_reaches_the_large_model_s_accuracy_on_a_third_of_the_rows(
    probabilities: Probabilities, below: float, right: int, escalated: int
) -> None:
    unsure = probabilities["logreg"].max(axis=1) < below
    answers = np.where(unsure[:, None], probabilities["rf1024"], probabilities["logreg"])
    assert (correct(answers), int(unsure.sum())) == (right, escalated)


def test_the_ensemble_s_mean_gets_889_rows_right(probabilities: Probabilities) -> None:
    assert correct((probabilities["rf256"] + probabilities["rf1024"] + probabilities["rbf"]) / 3) == 889
