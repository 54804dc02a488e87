"""Messages about names that are not there."""

from sluice.models.pipelines.model_reference import expected_one_of


def test_the_possible_names_are_listed() -> None:
    assert expected_one_of([]) == "there are none"
    assert expected_one_of(["x"]) == "expected x"
    assert expected_one_of(["logits", "scores"], "logit") == "expected one of logits, scores; did you mean 'logits'?"


def test_a_list_of_names_has_a_bound_in_length_and_number() -> None:
    assert expected_one_of(["n" * 5000]) == f"expected {'n' * 100}"
    text = expected_one_of([f"tensor_{number}" for number in range(1000)])
    assert text.startswith("expected one of tensor_0, tensor_1, ")
    assert text.endswith(", tensor_49 and 950 more")
