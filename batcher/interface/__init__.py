"""The structs that drivers and the scheduler exchange: events, decisions, outcomes, configuration and plans."""
