"""The front access and the live shell: protocols, tensors, asyncio, metrics, command line."""
