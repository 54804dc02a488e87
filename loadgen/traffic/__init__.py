"""Traffic: arrival processes, recorded traces, and the schedule that a run fixes from its seed."""
