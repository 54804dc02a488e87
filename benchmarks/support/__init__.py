"""Helpers of the benchmarks: closed-loop clients, baseline servers, processes pinned to cores."""
