"""Sequences: requests of one client that one partition runs one after the other, since its worker holds their state."""
