"""Runs: the runner, the issuer that paces it, the search for the highest rate, and reports."""
