"""Servers in the load generator's own process."""
