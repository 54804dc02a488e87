"""Arrival processes: each draws from uniform numbers only, so that a seed's arrivals never change with a release."""
