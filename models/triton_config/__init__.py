"""Triton's model configurations: reading, checking, completing and printing them, and the ensembles they describe."""
