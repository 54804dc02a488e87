import numpy as np
import pytest

from sluice.loadgen.papers.engines.chaining_client import ChainingClient, Tensor, V2Connection, passes
from sluice.models.errors import ServingError

PROBABILITIES = {
    "first": {0: [0.9, 0.1], 1: [0.6, 0.4], 2: [0.55, 0.45]},
    "second": {0: [0.1, 0.9], 1: [0.2, 0.8], 2: [0.5, 0.5]},
    "ensemble": {0: [0.5, 0.5], 1: [0.4, 0.6], 2: [0.525, 0.475]},
    "cascade": {0: [0.9, 0.1], 1: [0.2, 0.8], 2: [0.55, 0.45]},
}
"""The answers of the models to three images, and those that the pipelines should give."""


class Models(V2Connection):
    """The models and pipelines without a server; `asked` has the names of those that were asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", as_json=False)
        self.answers = {name: dict(rows) for name, rows in PROBABILITIES.items()}
        self.asked: list[str] = []

    def ask(self, model: str, tensor: Tensor) -> Tensor:
        self.requests += 1
        self.asked.append(model)
        return tensor if model == "prep" else np.array([self.answers[model][int(tensor.flat[0])]])


IMAGES = np.array([[0], [1], [2]], np.uint8)


def test_a_chain_asks_for_the_second_model_only_where_the_first_is_not_sure() -> None:
    models = Models()
    client = ChainingClient(models, below=0.7)
    assert client.cascade(IMAGES[:1]).tolist() == [[0.9, 0.1]]
    assert models.asked == ["prep", "first"]
    assert client.cascade(IMAGES[1:2]).tolist() == [[0.2, 0.8]], "the more confident answer"
    assert client.cascade(IMAGES[2:]).tolist() == [[0.55, 0.45]]
    assert models.asked[2:] == ["prep", "first", "second"] * 2


def test_both_ways_go_first_in_turns_and_every_request_of_a_chain_counts() -> None:
    models = Models()
    found = passes(models, IMAGES, 2, below=0.7)
    assert [each.requests for each in found] == [{"ensemble": 9, "cascade": 8}] * 2
    assert all(len(times) == 3 for each in found for times in (*each.whole.values(), *each.chained.values()))
    assert models.asked[:4] == ["prep", "first", "second", "ensemble"]
    assert models.asked[7:11] == ["ensemble", "prep", "first", "second"], "the other way goes first next"


def test_a_pipeline_that_answers_otherwise_than_its_steps_ends_the_measurement() -> None:
    models = Models()
    models.answers["ensemble"][1] = [0.3, 0.7]
    with pytest.raises(ServingError, match="ensemble: image 1 has another answer as one request than in steps"):
        passes(models, IMAGES, 1, below=0.7)
