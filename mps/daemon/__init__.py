"""MPS control daemons: start, watchdog, commands in both protocols, and the processes and clients that they have."""
