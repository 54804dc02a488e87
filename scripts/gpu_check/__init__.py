"""Measures the behaviour of MPS on a GPU: `python3 scripts/gpu_check`; its modules import each other by bare names."""
