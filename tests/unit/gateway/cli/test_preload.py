"""The command that fills the response cache: what it counts."""

import json

import pytest

from sluice.gateway.cli import preload
from sluice.gateway.cli.client.http import ServerAddress


def test_the_counts_of_all_versions_are_those_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def statistics(server: ServerAddress, path: str) -> bytes:
        assert path == "/v2/models/a%2Fb/stats"
        versions = [(1, 0), (20, 300)]
        return json.dumps(
            {
                "model_stats": [
                    {"inference_stats": {"cache_hit": {"count": hits}, "cache_miss": {"count": misses}}}
                    for hits, misses in versions
                ]
            }
        ).encode()

    monkeypatch.setattr(preload, "request", statistics)
    counts = preload._statistics(ServerAddress("http://localhost:8000"), "a/b")
    assert (counts.cache_hit.count, counts.cache_miss.count) == (21, 300)
