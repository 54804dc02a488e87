"""Where inference requests are sent, by their paths and by headers of SageMaker."""

import pytest

from sluice.gateway.http.dialect import (
    Dialect,
    InferenceTarget,
    find_target,
    sagemaker_content_type,
    sagemaker_json_length,
    target_model,
)
from sluice.models.errors import RequestError


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/v2/models/m/infer", InferenceTarget("m", "", Dialect.V2)),
        ("/v2/models/m/versions/3/infer", InferenceTarget("m", "3", Dialect.V2)),
        ("/v1/models/m:predict", InferenceTarget("m", "", Dialect.V1)),
        ("/v1/models/m/versions/3:predict", InferenceTarget("m", "3", Dialect.V1)),
        ("/v1/models/a:b:predict", InferenceTarget("a:b", "", Dialect.V1)),
        ("/invocations", InferenceTarget("", "", Dialect.SAGEMAKER)),
    ],
)
def test_a_path_names_the_model_and_leads_back_to_itself(path: str, target: InferenceTarget) -> None:
    assert find_target(path) == target
    quoted = path.replace("a:b", "a%3Ab")
    assert target.path == quoted.encode()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/m",
        "/v1/models/m/predict",
        "/v1/models/m/versions/x:predict",
        "/v1/models/m/n:predict",
        "/v1/models/m:explain",
        "/invocations/",
        "/ping",
    ],
)
def test_other_paths_are_not_of_inference(path: str) -> None:
    assert find_target(path) is None


def test_a_header_of_sagemaker_names_a_model_or_its_archive() -> None:
    assert (
        target_model(b"resnet") == target_model(b" resnet.tar.gz ") == InferenceTarget("resnet", "", Dialect.SAGEMAKER)
    )
    assert target_model(b"\xff").name == "\ufffd"


@pytest.mark.parametrize(
    ("content_type", "length"),
    [
        (b"application/json", None),
        (b"", None),
        (b"application/vnd.sagemaker-triton.binary+json;json-header-size=175", 175),
        (b"Application/vnd.SageMaker-Triton.binary+json ; JSON-header-size=0", 0),
        (b'application/vnd.sagemaker-triton.binary+json; json-header-size="12"', 12),
    ],
)
def test_the_type_of_a_body_says_how_long_its_json_is(content_type: bytes, length: int | None) -> None:
    assert sagemaker_json_length(content_type) == length


@pytest.mark.parametrize("parameter", [b"", b";json-header-size=", b";json-header-size=-1", b";json-header-size=1x"])
def test_a_type_without_the_length_is_refused(parameter: bytes) -> None:
    with pytest.raises(RequestError, match="must have json-header-size=N, the length of the JSON in bytes, got 'app"):
        sagemaker_json_length(b"application/vnd.sagemaker-triton.binary+json" + parameter)


def test_the_type_of_an_answer_is_read_like_that_of_a_request() -> None:
    assert sagemaker_json_length(sagemaker_content_type(88)) == 88
