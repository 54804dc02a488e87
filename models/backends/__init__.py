"""Backends, which run a model on arrays: one module each, looked up by name."""
