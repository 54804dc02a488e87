"""A gRPC server of Sluice's own over HTTP/2 (RFC 9113). Only `client_connection` and `server` do I/O."""
