"""Configurations and ensembles that are wrong, loaded by the real tritonclient: each is refused with what is wrong.

The cases are those of the unit tests, which stand for Triton's corpus of bad configurations.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import TensorSpec
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models import ensembles
from tests.support.models.onnx_models import save_mlp
from tests.unit.models.triton_config import test_check as test_config_check
from tests.unit.models.triton_config import test_complete as test_configured_model
from tests.unit.models.triton_config import test_ensemble
from tests.unit.models.triton_config import test_pbtxt as test_config_pbtxt

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
ELSEWHERE = ("is not served", "not supported")
"""In the message of what Triton may have and Sluice has not."""
MODEL = "def infer(inputs):\n    return inputs\n"


class Server(NamedTuple):
    """A server in mode explicit, and its repository."""

    gateway: GatewayServer
    repository: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("bad_models")
    repository = directory / "models"
    for spec in ensembles.SPECS:
        version = repository / spec.name / str(spec.version)
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(configuration(spec))
    save_mlp(repository / "m" / "1" / "model.onnx", [4, 3])
    (repository / "e" / "1").mkdir(parents=True)
    with gateway_server(
        repository, directory, {"control": "explicit", "partitions": 1, "max_batch_size": 64}
    ) as running:
        yield Server(running, repository)


def configuration(spec: ModelSpec) -> str:
    """That of a model in Python with these tensors, of which all versions are served."""
    tensors = [("input", each) for each in spec.inputs] + [("output", each) for each in spec.outputs]
    lines = [f"{kind} {{ {_tensor(tensor)} }}" for kind, tensor in tensors]
    return "\n".join(
        ['backend: "python"', f"max_batch_size: {spec.max_batch_size}", "version_policy { all { } }", *lines]
    )


def _tensor(tensor: TensorSpec) -> str:
    optional = " optional: true" if tensor.optional else ""
    return f'name: "{tensor.name}" data_type: TYPE_{tensor.datatype} dims: {list(tensor.shape)}{optional}'


def refusal(server: Server, client: str, name: str, config: str) -> InferenceServerException:
    """The result of loading an entry of the repository with that config.pbtxt."""
    (server.repository / name / "config.pbtxt").write_text(config)
    url = server.gateway.http_url if client == "http" else server.gateway.grpc_url
    with CLIENTS[client].InferenceServerClient(url) as connection, pytest.raises(InferenceServerException) as caught:
        connection.load_model(name)
    return caught.value


def cases(
    source: str, kind: str, table: Sequence[tuple[str, str, str]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The rows (what, configuration, message) as parameters of a test, with both clients in turn."""
    parameters = []
    for number, (what, config, message) in enumerate(table):
        triton = "served" if any(each in message for each in ELSEWHERE) else ""
        name = what.replace("{", "{{").replace("}", "}}")
        mark = pytest.mark.behaviour(source, f"{kind}: {name}", triton=triton)
        parameters.append(pytest.param(list(CLIENTS)[number % 2], config, message, marks=mark, id=f"{number}"))
    return pytest.mark.parametrize(("client", "config", "message"), parameters)


def short(text: str) -> str:
    """A configuration on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:90]}..."


def added(head: str) -> str:
    """The change that makes a good head of an ensemble a bad one."""
    good = ensembles.HEAD.splitlines()
    return short(" ".join(line for line in head.splitlines() if line not in good) or "less than it needs")


GOOD_STEPS = ensembles.PREP + ensembles.NET
STEPS = [
    # Of the other models only those are read that it names.
    (what, f"{ensembles.HEAD}\nensemble_scheduling {{ {steps} }}", message.partition("; expected one of")[0])
    for what, steps, message in test_ensemble.BAD_STEPS
]
HEADS = [
    (added(head), f"{head}\nensemble_scheduling {{ {GOOD_STEPS} }}", message)
    for head, message in test_ensemble.BAD_HEADS
]
CONFIGURATIONS = [
    (short(text), text, message)
    for module in (test_config_check.BAD, test_config_pbtxt.REFUSALS, test_configured_model.BAD)
    for text, message in module
]


@cases("L0_model_config", "a bad ensemble", STEPS + HEADS)
def test_a_bad_ensemble_is_not_loaded(server: Server, client: str, config: str, message: str) -> None:
    error = refusal(server, client, "e", config)
    assert error.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert re.search(f"^load failed for model 'e': .*{message}", error.message()), error.message()


@cases("L0_model_config", "a bad configuration", CONFIGURATIONS)
def test_a_bad_configuration_is_not_loaded(server: Server, client: str, config: str, message: str) -> None:
    error = refusal(server, client, "m", config)
    assert error.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert re.search(f"^load failed for model 'm': .*{message}", error.message()), error.message()
