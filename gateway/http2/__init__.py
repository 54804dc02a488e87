"""The common part of servers and clients of HTTP/2: frames and header blocks."""
