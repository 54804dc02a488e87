"""Units of time: the core counts integer nanoseconds, people write milliseconds."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
INFINITE_NS = 1 << 62
"""Stands for a time that never comes; sums with other times stay within 64 bits."""


def ms_to_ns(milliseconds: float) -> int:
    """Milliseconds as whole nanoseconds."""
    return round(milliseconds * NS_PER_MS)


def ns_to_ms(nanoseconds: int) -> float:
    """Nanoseconds as milliseconds, for configuration files and reports."""
    return nanoseconds / NS_PER_MS
