"""Profiles: measured or simulated latency and memory of models, by kind of partition."""
