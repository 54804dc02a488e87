"""Runs: the runner, the issuer that paces it and the search for the highest rate."""
