"""The front door and the live shell: protocols, tensors, asyncio, metrics, command line."""
