"""Measures loaded models: a first latency table at load, a thorough measurement for a profile, and memory."""
