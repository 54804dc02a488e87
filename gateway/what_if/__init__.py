"""Planning without a server: the cheapest configuration of a pipeline, its limits and its alternatives."""
