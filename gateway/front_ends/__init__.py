"""Front ends: processes that talk to clients over HTTP, in front of one scheduler in the gateway's process."""
