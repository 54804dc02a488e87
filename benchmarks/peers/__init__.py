"""Sluice beside other servers: the same models, requests, client, cores and objective. `python -m benchmarks.peers`."""
