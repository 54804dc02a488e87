"""Spans of requests for a collector of OpenTelemetry, made and sent by a process of its own."""
