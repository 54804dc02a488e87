"""Live targets: clients of servers that speak the V2 inference protocol over HTTP or gRPC."""
