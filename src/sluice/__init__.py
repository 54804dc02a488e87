"""Sluice: an inference serving gateway with adaptive batching on shared GPUs."""
