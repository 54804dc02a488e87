"""The checks of `sluice doctor`, of this machine and of a cluster."""
