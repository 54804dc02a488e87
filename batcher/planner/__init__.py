"""Planners: which batch size on which kind of partition, jointly for all stages of a pipeline (may use numpy)."""
