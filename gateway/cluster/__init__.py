"""Partitions on other machines: who finds or places their workers, and how gateways share them."""
