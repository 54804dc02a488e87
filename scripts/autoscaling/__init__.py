"""Compares the autoscaler with the rules of others, on four kinds of traffic, in virtual time."""
