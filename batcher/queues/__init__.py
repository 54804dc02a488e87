"""Waiting entries: their order, priority levels, and the rows that stages run for."""
