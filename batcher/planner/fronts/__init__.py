"""The exact planner's Pareto fronts: the least cost of each part of a pipeline within a time."""
