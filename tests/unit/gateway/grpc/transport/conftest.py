"""Tests that get `serve` run with both gRPC servers."""

import pytest

from sluice.gateway.config.front_door import GrpcServerKind
from tests.unit.gateway.grpc.transport.serving import Serving


@pytest.fixture(params=list(GrpcServerKind))
def serve(request: pytest.FixtureRequest) -> Serving:
    """Serves with one of the servers."""
    return Serving(request.param)
