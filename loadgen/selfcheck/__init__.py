"""The load generator's test of itself: how many queries a second this machine lets it send on time."""
