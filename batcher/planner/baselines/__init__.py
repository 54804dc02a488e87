"""TODO batcher/planner/baselines."""
