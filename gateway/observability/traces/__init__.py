"""Traces of requests: their contexts, files and settings, and explanations of them."""
