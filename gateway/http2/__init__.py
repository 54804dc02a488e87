"""What servers and clients of HTTP/2 share: frames and header blocks."""
