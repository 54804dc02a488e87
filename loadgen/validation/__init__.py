"""Validation of the simulator: measures a live server, calibrates the simulation and compares the two."""
