"""Executors: carry out the work that the scheduler orders."""
