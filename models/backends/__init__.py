"""Backends: run a model on arrays."""
