"""Reports of runs and searches, as text, JSON and pages."""
