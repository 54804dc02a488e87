"""The simulated target: the gateway's scheduler in virtual time, on a machine that a file describes."""
