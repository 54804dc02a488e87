"""Front ends: processes that talk to clients, in front of one scheduler in the gateway's process."""
