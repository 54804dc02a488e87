"""Worker processes as the gateway sees them: start, replacement, loss, recovery and quarantine."""
