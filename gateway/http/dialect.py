"""The protocols of inference over HTTP: where a request is sent, and what else differs from V2."""

import enum
import re
from typing import NamedTuple
from urllib.parse import quote

from sluice.gateway.protocol.request import MAX_VERSION_DIGITS
from sluice.models.errors import RequestError

TARGET_MODEL = b"x-amzn-sagemaker-target-model"
"""The header of SageMaker that names the model; its name there is that of an archive."""

_VERSION = rf"(?:/versions/([0-9]{{1,{MAX_VERSION_DIGITS}}}))?"
_V2_PATH = re.compile(rf"/v2/models/([^/]*){_VERSION}/infer", re.ASCII)
_V1_PATH = re.compile(rf"/v1/models/([^/]*){_VERSION}:predict", re.ASCII)
_SAGEMAKER_PATH = "/invocations"
_ARCHIVE = ".tar.gz"
_BINARY = b"application/vnd.sagemaker-triton.binary+json"
_JSON_SIZE = re.compile(rb"\s*json-header-size\s*=\s*\"?([0-9]{1,18})\"?\s*", re.ASCII | re.IGNORECASE)


class Dialect(enum.Enum):
    """V2; V1, as of KServe and TensorFlow Serving; or SageMaker, with bodies of both."""

    V2 = enum.auto()
    V1 = enum.auto()
    SAGEMAKER = enum.auto()


class InferenceTarget(NamedTuple):
    """The model of an inference request, its version ("" for the latest), and the protocol.

    For SageMaker, a name of "" stands for the server's model.
    """

    name: str
    version: str
    dialect: Dialect

    @property
    def path(self) -> bytes:
        """The path of requests to it; a header names the model of SageMaker."""
        if self.dialect is Dialect.SAGEMAKER:
            return _SAGEMAKER_PATH.encode()
        version = f"/versions/{self.version}" if self.version else ""
        name = quote(self.name, safe="")
        if self.dialect is Dialect.V1:
            return f"/v1/models/{name}{version}:predict".encode()
        return f"/v2/models/{name}{version}/infer".encode()


def find_target(path: str) -> InferenceTarget | None:
    """The target of POST requests to a path; None if it is not one of inference."""
    match = _V2_PATH.fullmatch(path)
    if match is not None:
        return InferenceTarget(match[1], match[2] or "", Dialect.V2)
    if path == _SAGEMAKER_PATH:
        return InferenceTarget("", "", Dialect.SAGEMAKER)
    match = _V1_PATH.fullmatch(path)
    return None if match is None else InferenceTarget(match[1], match[2] or "", Dialect.V1)


def target_model(value: bytes) -> InferenceTarget:
    """The target that the header of SageMaker names: a model, or the archive of one."""
    return InferenceTarget(value.decode("utf-8", "replace").strip().removesuffix(_ARCHIVE), "", Dialect.SAGEMAKER)


def sagemaker_json_length(content_type: bytes) -> int | None:
    """The length of the JSON before binary data, by the type of a body; None if all of the body is JSON.

    Raises RequestError.
    """
    kind, _, parameter = content_type.partition(b";")
    if kind.strip().lower() != _BINARY:
        return None
    size = _JSON_SIZE.fullmatch(parameter)
    if size is None:
        raise RequestError(
            f"Content-Type {_BINARY.decode()} must have json-header-size=N, the length of the JSON in bytes, "
            f"got '{content_type[:120].decode('latin-1')}'"
        )
    return int(size[1])


def sagemaker_content_type(json_length: int) -> bytes:
    """The type of a body with binary data after that many bytes of JSON."""
    return b"%b;json-header-size=%d" % (_BINARY, json_length)
