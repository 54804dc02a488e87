"""Tests that get a `kind` run with both gRPC servers."""

import pytest

from sluice.gateway.config.front_door import GrpcServerKind


@pytest.fixture(params=list(GrpcServerKind))
def kind(request: pytest.FixtureRequest) -> GrpcServerKind:
    """One of the servers."""
    chosen: GrpcServerKind = request.param
    return chosen
