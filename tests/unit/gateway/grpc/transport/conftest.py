"""Tests that get `serve` run with both gRPC servers."""

import pytest

from sluice.gateway.config.front_door import GrpcServerKind
from tests.unit.gateway.grpc.transport.serving import Serving


@pytest.fixture
def serve(kind: GrpcServerKind) -> Serving:
    """Serves with one of the servers."""
    return Serving(kind)
