"""Policies that decide which models share a device, by their memory: one policy a file."""
