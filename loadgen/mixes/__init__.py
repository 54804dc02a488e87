"""Mixes: several models or pipelines in one run, each a stream with its own share, samples and objective."""
