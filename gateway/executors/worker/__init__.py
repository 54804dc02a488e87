"""The executor over pinned worker processes that share memory with the gateway."""
