"""The channel between the gateway and a worker: messages, and memory that both have mapped."""
