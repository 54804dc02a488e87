"""Gives partitions other shares of the machine while they serve, for a client, for their load or for the plan."""
