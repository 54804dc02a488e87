"""The HTTP API: bytes on a connection to protocol structs and back."""
