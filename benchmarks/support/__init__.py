"""What the benchmarks share: closed-loop clients, baseline servers, processes pinned to cores."""
