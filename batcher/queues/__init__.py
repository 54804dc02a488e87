"""Waiting entries: their order, the fair shares of pipelines, priority levels, and the rows that stages run for."""
