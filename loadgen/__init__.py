"""Traffic and measurement: schedules, targets, statistics, reports."""
