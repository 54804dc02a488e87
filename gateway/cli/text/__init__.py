"""TODO gateway/cli/text."""
