"""Autoscaling: how many partitions each class of remote partitions is to have, and which of them go."""
