"""The protocol between gateways and worker servers: messages, their framing, and the gateway's end of a session."""
