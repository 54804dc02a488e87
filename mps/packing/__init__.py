"""Which models lie together on a device, by their memory: one policy a file."""
