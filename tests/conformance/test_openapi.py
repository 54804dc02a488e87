"""Requests that Schemathesis makes of the OpenAPI document, as it says and otherwise: no failure, no hang."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

EXAMPLES, INFERENCES = 5, 15
"""Requests to each route in each mode, and to those of inference."""
TIMEOUT_S = 60
KNOWN = {"name": "m", "version": "1"}
ENDLESS = "/v2/sluice/now/events"
"""The stream of this route ends with the server; the tests of the page read it."""
REFUSALS = (501, 503)
"""The statuses of Triton's protocol for routes that are not served, and for models that are not there now."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("openapi")
    save_identity(directory / "models" / "m" / "1" / "model.onnx", DataType.FP32, [2])
    settings = {"control": "explicit", "load_models": ["m"], "allow_client_shm": True, "partitions": 1}
    with gateway_server(directory / "models", directory, settings) as running:
        yield running


@pytest.mark.behaviour(
    "L0_http_fuzz", "requests made of the OpenAPI document, to every route, cause no failure or hang"
)
def test_no_route_fails_or_hangs(server: GatewayServer) -> None:
    document = schemathesis.openapi.from_url(f"http://{server.http_url}/openapi.json")
    results = list(document.get_all_operations())
    operations = [result.ok() for result in results if isinstance(result, Ok)]
    assert len(operations) == len(results)
    answered: dict[str, set[int]] = {}
    for operation in (each for each in operations if each.path != ENDLESS):
        statuses = answered.setdefault(f"{operation.method.upper()} {operation.path}", set())
        ask(operation, GenerationMode.POSITIVE, statuses)
        if operation.body or "{version}" in operation.path:  # else nothing can be other than the document says
            ask(operation, GenerationMode.NEGATIVE, statuses)
    assert answered["GET /metrics"] == {200}
    assert answered["POST /v2/models/{name}/infer"] >= {400, 404}
    assert answered["POST /v2/trace/setting"] >= {200, 400}
    assert server.request("GET", "/v2/health/ready")[0] == 200


def ask(operation: Any, mode: GenerationMode, statuses: set[int]) -> None:
    """Send requests to a route, half of them to the model that there is; requests that unload it go to others."""

    @seed(0)
    @settings(
        max_examples=INFERENCES if operation.path.endswith("/infer") else EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def send(case: Any, known: bool) -> None:
        if known and not operation.path.endswith("/unload"):
            case.path_parameters |= {name: KNOWN[name] for name in KNOWN.keys() & case.path_parameters.keys()}
        response = case.call(timeout=TIMEOUT_S)
        statuses.add(response.status_code)
        assert response.status_code < 500 or response.status_code in REFUSALS, case.as_curl_command()

    send()
