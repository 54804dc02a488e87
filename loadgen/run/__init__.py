"""Runs: the Server scenario, the issuer that paces it, the search for the highest rate, and reports."""
